package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// In the image of cyclonus' pods this program stands for the two that cyclonus calls: "/agnhost serve-hostname" in each
// container, and "/worker --jobs JSON" for all attempts of a pod at once.

// workerRequest and workerResult are cyclonus' (its pkg/worker).
type workerRequest struct {
	Key      string
	Protocol string
	Host     string
	Port     int
}

type workerResult struct {
	Request workerRequest
	Output  string
	Error   string
}

// workerTimeout is of one attempt; workerTries how many each has.
const (
	workerTimeout = time.Second
	workerTries   = 2
)

func workerCommand(args []string) error {
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	jobs := flags.String("jobs", "", "the requests, in JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var batch struct{ Requests []workerRequest }
	if err := json.Unmarshal([]byte(*jobs), &batch); err != nil {
		return fmt.Errorf("-jobs: %w", err)
	}
	results := make([]workerResult, len(batch.Requests))
	var wg sync.WaitGroup
	for i, r := range batch.Requests {
		results[i].Request = r
		wg.Go(func() {
			err := errors.New("no address was given")
			for range workerTries {
				if r.Host == "" { // it would be the pod itself
					break
				}
				if err = attempt(strings.ToLower(r.Protocol), net.JoinHostPort(r.Host, fmt.Sprint(r.Port)), nil, workerTimeout); err == nil {
					return
				}
			}
			results[i].Error = err.Error()
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(results)
}

// serveHostnameCommand serves one protocol on one port: both of a port are containers of their own.
func serveHostnameCommand(args []string) error {
	flags := flag.NewFlagSet("serve-hostname", flag.ContinueOnError)
	tcp, udp := flags.Bool("tcp", false, "serve TCP"), flags.Bool("udp", false, "serve UDP")
	port := flags.Int("port", 0, "port to serve")
	_ = flags.Bool("http", false, "no HTTP is served")
	if err := flags.Parse(args); err != nil {
		return err
	}
	address := fmt.Sprintf(":%d", *port)
	switch {
	case *tcp:
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer l.Close()
		go serveStreams(l)
	case *udp:
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		go (&server{udp: c}).serveUDP()
	default:
		return errors.New("say -tcp or -udp")
	}
	<-untilSignal()
	return nil
}

// porterCommand serves SCTP on the port that the environment names: SERVE_SCTP_PORT_80=…
func porterCommand([]string) error {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		text, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_")
		if !ok {
			continue
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return err
		}
		l, err := listenSCTP(netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
		if err != nil {
			return err
		}
		defer l.Close()
		go serveStreams(l)
	}
	<-untilSignal()
	return nil
}
