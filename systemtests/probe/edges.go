package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"
)

// shutRun is how many questions in a row must stay without an answer before the way counts as shut: one may be lost.
const shutRun = 10

// Edge is a moment at which a way opened or shut: when the first question of the new kind was sent.
type Edge struct {
	UnixNanos int64 `json:"unixNanos"`
	Open      bool  `json:"open"`
}

// question is one that was sent.
type question struct {
	sent     int64 // Unix nanoseconds
	answered bool
}

func edgesCommand(args []string) error {
	flags := flag.NewFlagSet("edges", flag.ContinueOnError)
	rate := flags.Int("rate", 5000, "questions a second")
	most := flags.Duration("most", 5*time.Minute, "stop by itself after this time")
	answered := flags.Bool("answered", false, answeredUsage)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *rate <= 0 {
		return fmt.Errorf("edges wants one ADDRESS, and a rate above 0:\n%s", usage)
	}
	l, err := dial("udp", flags.Arg(0), nil, time.Second)
	if err != nil {
		return err
	}
	defer l.Close()
	runtime.GOMAXPROCS(1) // there is one thing to do at a time; others would only look for more
	told, stop := untilSignal(), make(chan os.Signal)
	go func() {
		select {
		case <-told:
		case <-time.After(*most):
		}
		close(stop)
	}()
	heard := func(uint64) {}
	if *answered {
		if heard, err = begin(os.NewFile(answeredFD, "answered")); err != nil {
			return err
		}
	}
	questions, err := interrogate(l, time.Second/time.Duration(*rate), heard, stop)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(edges(questions))
}

// interrogate asks every interval until stop. It calls heard with the number of each answered question.
func interrogate(l link, interval time.Duration, heard func(uint64), stop <-chan os.Signal) (questions []question, err error) {
	t := &tally{next: 1, last: time.Now(), heard: func(n uint64) {
		heard(n)
		if n >= 1 && n <= uint64(len(questions)) {
			questions[n-1].answered = true
		}
	}}
	c, err := newConversation(l, t)
	if err != nil {
		return nil, err
	}
	c.asks = func() { questions = append(questions, question{sent: time.Now().UnixNano()}) }
	sent := c.ask(interval, stop)
	c.rest(sent, time.Now(), grace)
	return questions[:sent], t.broken
}

func edges(questions []question) []Edge {
	out := []Edge{}
	open, shutFor := false, 0
	for i := range questions {
		answered := questions[i].answered
		if answered {
			shutFor = 0
		} else {
			shutFor++
		}
		switch {
		case answered && !open:
			out, open = append(out, Edge{questions[i].sent, true}), true
		case open && shutFor == shutRun:
			out, open = append(out, Edge{questions[i-shutRun+1].sent, false}), false
		}
	}
	return out
}
