package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// shutRun is how many questions in a row must stay without an answer before the way counts as shut: one may be lost.
const shutRun = 10

// Edge is a moment at which a way opened or shut: when the first question of the new kind was sent.
type Edge struct {
	UnixNanos int64 `json:"unixNanos"`
	Open      bool  `json:"open"`
}

// question is one that was sent; its answer may come while it is read.
type question struct {
	sent     int64 // Unix nanoseconds
	answered atomic.Bool
}

func edgesCommand(args []string) error {
	flags := flag.NewFlagSet("edges", flag.ContinueOnError)
	rate := flags.Int("rate", 5000, "questions a second")
	most := flags.Duration("most", 5*time.Minute, "stop by itself after this time")
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
	questions := make([]question, int(most.Seconds()*float64(*rate)))
	done := make(chan struct{})
	go func() { defer close(done); tick(l, questions) }()
	sent := ask(l, questions, time.Second/time.Duration(*rate), untilSignal())
	if err := l.SetReadDeadline(time.Now().Add(grace)); err != nil {
		return err
	}
	<-done
	return json.NewEncoder(os.Stdout).Encode(edges(questions[:sent]))
}

// ask sends until it is stopped or all are sent.
func ask(l link, questions []question, interval time.Duration, stop <-chan os.Signal) (sent int) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for start := time.Now(); sent < len(questions); {
		select {
		case <-stop:
			return sent
		case <-ticker.C:
		}
		for due := int(time.Since(start) / interval); sent < min(due, len(questions)); sent++ {
			questions[sent].sent = time.Now().UnixNano()
			_ = l.ask(uint64(sent)) // what is not sent is not answered
		}
	}
	return sent
}

func tick(l link, questions []question) {
	for {
		n, err := l.answer()
		switch {
		case err == nil && n < uint64(len(questions)):
			questions[n].answered.Store(true)
		case errors.Is(err, os.ErrDeadlineExceeded), err != nil && !passing(err):
			return
		}
	}
}

func edges(questions []question) []Edge {
	out := []Edge{}
	open, shutFor := false, 0
	for i := range questions {
		answered := questions[i].answered.Load()
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
