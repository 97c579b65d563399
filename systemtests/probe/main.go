// Probe sends and answers packets, so that tests and the demo see what the policies let through: one attempt
// ("check") or a thousand a second for as long as something else is being killed ("stream"). It is static and small, and
// runs in a pod's image or, from outside, in a pod's network namespace.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const usage = `probe serve [ADDRESS:]PORT…               echo TCP, UDP and SCTP on the ports until it is stopped
probe check [-timeout 1s] [-from SOURCE] PROTO ADDRESS…
                                          one attempt at each address at once; prints "open" or "shut" a line, in order
probe stream [-rate 1000] [-for 0] [-grace 500ms] [-redial 200ms] [-answered] PROTO ADDRESS
                                          ask all the time, until SIGTERM or -for is over; prints a report in JSON
probe edges [-rate 5000] [-answered] ADDRESS
                                          ask over UDP until SIGTERM; prints in JSON when the way opened and shut
probe connects [-for 3s] ADDRESS          TCP connections a second, one after the other by each of four workers
probe clients FIRST COUNT ADDRESS         ask once over UDP from each of COUNT local addresses; prints how many were answered
probe first [-for 3s] PROTO ADDRESS…
                                          from the first instruction on: tries each address again and again; prints in JSON what was
                                          answered, and how many datagrams came in
probe spray [-rate 2000] FIRST COUNT PORT  datagrams to COUNT addresses, round and round
probe size [-timeout 1s] ADDRESS BYTES    ask over UDP in an IP packet of BYTES that is not to be fragmented; prints "open", "shut" or
                                          "large MTU"
probe capture INTERFACE CIDR…             until SIGTERM count Geneve packets, and others with addresses in the CIDRs; prints JSON
probe forge [-tunnel SOURCE,DESTINATION [-plain]] SOURCE DESTINATION:PORT
                                          send one UDP datagram over IPv4 from any source, bare or in Geneve
probe frames [-dev eth0] [-pause 0] [-repeat]
                                          send the Ethernet frames on stdin, one a line in hexadecimal
probe hear [-dev eth0] TOKEN              print the frames that come in and hold the token (hexadecimal), until SIGTERM
probe arrivals [-dev eth0] PROTO SOURCE ADDRESS…
                                          count what comes in from SOURCE for ADDRESS, until SIGTERM; prints JSON
probe relay LINK                          send frames on that come in by a macvtap's device, as each says
probe bulk [-size 200000] ADDRESS         send a TCP stream to an echo server and take it back; fails unless all of it comes
probe get URL                             fetch a page, within 5 s; fails unless the answer is 200
PROTO is tcp, udp, sctp or icmp; ADDRESS is HOST:PORT ([HOST]:PORT), or HOST for icmp.
check takes several: probe check tcp 10.0.0.1:80 udp 10.0.0.1:53 icmp fd00::1
`

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "worker" { // as cyclonus calls it
		args = append([]string{"worker"}, args...)
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do:\n%s", usage)
	}
	switch args[0] {
	case "serve":
		return serveCommand(args[1:])
	case "check":
		return checkCommand(args[1:])
	case "stream":
		return streamCommand(args[1:])
	case "edges":
		return edgesCommand(args[1:])
	case "connects":
		return connectsCommand(args[1:])
	case "clients":
		return clientsCommand(args[1:])
	case "first":
		return firstCommand(args[1:])
	case "spray":
		return sprayCommand(args[1:])
	case "size":
		return sizeCommand(args[1:])
	case "capture":
		return captureCommand(args[1:])
	case "forge":
		return forgeCommand(args[1:])
	case "frames":
		return framesCommand(args[1:])
	case "hear":
		return hearCommand(args[1:])
	case "arrivals":
		return arrivalsCommand(args[1:])
	case "relay":
		return relayCommand(args[1:])
	case "bulk":
		return bulkCommand(args[1:])
	case "worker":
		return workerCommand(args[1:])
	case "serve-hostname":
		return serveHostnameCommand(args[1:])
	case "porter":
		return porterCommand(args[1:])
	case "get":
		return getCommand(args[1:])
	}
	return fmt.Errorf("%q is not a command:\n%s", args[0], usage)
}

func serveCommand(places []string) error {
	for _, at := range places {
		if !strings.Contains(at, ":") {
			at = ":" + at
		}
		server, err := listen(at)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	<-untilSignal()
	return nil
}

func checkCommand(args []string) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	timeout := flags.Duration("timeout", time.Second, "how long an answer may take")
	source := flags.String("from", "", "source address; empty: the kernel's choice")
	if err := flags.Parse(args); err != nil {
		return err
	}
	from := net.ParseIP(*source)
	if *source != "" && from == nil {
		return fmt.Errorf("-from %s is no address", *source)
	}
	pairs := flags.Args()
	if len(pairs) == 0 || len(pairs)%2 != 0 {
		return fmt.Errorf("check wants pairs of PROTO and ADDRESS:\n%s", usage)
	}
	results := make([]error, len(pairs)/2)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = attempt(pairs[2*i], pairs[2*i+1], from, *timeout) })
	}
	wg.Wait()
	for _, err := range results {
		if err != nil {
			fmt.Println("shut", err)
		} else {
			fmt.Println("open")
		}
	}
	return nil
}

func streamCommand(args []string) error {
	flags := flag.NewFlagSet("stream", flag.ContinueOnError)
	rate := flags.Int("rate", 1000, "questions a second")
	duration := flags.Duration("for", 0, "stop by itself after this time; 0: never")
	grace := flags.Duration("grace", grace, "how long to wait for the next answer after the last question")
	redial := flags.Duration("redial", redial, "how long one attempt to connect may take")
	source := flags.Int("source", 0, "source port, for UDP; 0: the kernel chooses it")
	answered := flags.Bool("answered", false, answeredUsage)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 || *rate <= 0 {
		return fmt.Errorf("stream wants PROTO and ADDRESS, and a rate above 0:\n%s", usage)
	}
	stop := untilSignal()
	if *duration > 0 {
		time.AfterFunc(*duration, func() { stop <- syscall.SIGTERM })
	}
	runtime.GOMAXPROCS(1) // there is one thing to do at a time; others would only look for more
	to := streamTo{proto: flags.Arg(0), address: flags.Arg(1), source: *source}
	if *answered {
		heard, err := begin(os.NewFile(answeredFD, "answered"))
		if err != nil {
			return err
		}
		to.heard = heard
	}
	report, err := stream(to, pace{time.Second / time.Duration(*rate), *grace, *redial}, stop)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func getCommand(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("get wants one URL:\n%s", usage)
	}
	client := http.Client{Timeout: 5 * time.Second}
	res, err := client.Get(args[0])
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(os.Stdout, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", args[0], res.Status)
	}
	return nil
}

func untilSignal() chan os.Signal {
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	return stop
}
