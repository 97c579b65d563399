package main

import (
	"encoding/json"
	"net/http"
)

// mostAsked bounds a request, in bytes.
const mostAsked = 64 << 20

// Handler is how the nodes are told what to do: POST /connect, /disconnect, /pods (a list of Pod), /expect (a list of what to look out
// for) and /forget (what was expected); GET /state (State) and /seen, which tells when what was expected came since it was asked for the last
// time, in Unix nanoseconds.
func (n *Nodes) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /connect", func(w http.ResponseWriter, _ *http.Request) { n.Connect(); answer(w, n.State()) })
	mux.HandleFunc("POST /disconnect", func(w http.ResponseWriter, _ *http.Request) { n.Disconnect(); answer(w, n.State()) })
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { answer(w, n.State()) })
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, _ *http.Request) { answer(w, n.seen.take()) })
	mux.HandleFunc("POST /forget", func(w http.ResponseWriter, _ *http.Request) { n.seen.forget(); answer(w, struct{}{}) })
	mux.HandleFunc("POST /pods", asked(func(pods []Pod) error { return n.Wire(pods) }))
	mux.HandleFunc("POST /expect", asked(func(what []string) error { n.seen.expect(what...); return nil }))
	return mux
}

func asked[T any](do func(T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in T
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostAsked)).Decode(&in)
		if err == nil {
			err = do(in)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, struct{}{})
	}
}

func answer(w http.ResponseWriter, what any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(what) // who asked has gone
}
