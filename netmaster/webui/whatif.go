package webui

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/kube"
)

// maxManifest limits the manifest in a request, in bytes.
const maxManifest = 1 << 20

// trial is the request: a manifest to evaluate.
type trial struct {
	Manifest string `json:"manifest"`
	Delete   bool   `json:"delete"`
}

// whatif is the response: what the manifest would change.
type whatif struct {
	Same     bool            `json:"same"`
	Policies []explain.Tried `json:"policies"`
	Rows     []change        `json:"rows"`
	// Cut is the number of live connections that would be terminated. Unknown are nodes with incomplete data, and
	// why.
	Cut      int               `json:"cut"`
	Examples []string          `json:"examples"`
	Unknown  map[string]string `json:"unknown"`
	Notes    []string          `json:"notes"`
}

// change is a verdict that would change between all of From and all of To.
type change struct {
	From    []string `json:"from"`
	To      []string `json:"to"`
	What    string   `json:"what"`
	Family  int      `json:"family,omitempty"`
	Denied  bool     `json:"denied"`
	Because []string `json:"because"`
	Cut     int      `json:"cut"`
}

// whatif handles a POST. Foreign sites cannot send JSON here (wrap).
func (s *Server) whatif(r *http.Request) (any, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, badRequest("send application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxManifest+1))
	if err != nil {
		return nil, badRequest("read the manifest: %v", err)
	}
	if len(body) > maxManifest {
		return nil, badRequest("the manifest is too long for this page: netctl diff takes it")
	}
	var t trial
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, badRequest("read the question: %v", err)
	}
	trial, notes, err := trialOf(&t)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	d, err := get[inspect.Diff](r.Context(), s.ask, inspect.Question{Kind: inspect.AskDiff, Diff: trial})
	if err != nil {
		return nil, err
	}
	d.Notes = append(d.Notes, notes...)
	return whatifOf(&d), nil
}

// trialOf parses a manifest as netctl diff does.
func trialOf(t *trial) (*inspect.Trial, []string, error) {
	objects, err := kube.ReadFrom("manifest", strings.NewReader(t.Manifest))
	if err != nil {
		return nil, nil, err
	}
	policies, notes, err := kube.Policies(objects, kube.Options{Names: t.Delete})
	if err != nil {
		return nil, nil, err
	}
	if len(policies) == 0 {
		return nil, nil, errors.New("there is no NetworkPolicy in it")
	}
	out := &inspect.Trial{Delete: t.Delete, Connections: true}
	for _, np := range policies {
		text, err := kube.Bare(np)
		if err != nil {
			return nil, nil, err
		}
		out.Policies = append(out.Policies, text)
	}
	return out, notes, nil
}

func whatifOf(d *inspect.Diff) whatif {
	out := whatif{
		Same:     d.Same(),
		Policies: append([]explain.Tried{}, d.Policies...),
		Rows:     []change{},
		Examples: []string{},
		Notes:    append([]string{}, d.Notes...),
	}
	cuts := map[int]int{}
	if d.Live != nil {
		out.Cut, out.Unknown = d.Live.Connections, d.Live.Unknown
		for _, c := range d.Live.Cuts {
			cuts[c.Difference] = c.Connections
			out.Examples = append(out.Examples, c.Examples...)
		}
	}
	for _, r := range d.Rows() {
		row := change{
			From:    r.From,
			To:      r.To,
			What:    r.What.String(),
			Family:  r.Family,
			Denied:  r.Denied,
			Because: append([]string{}, r.Because...),
		}
		if r.Denied {
			row.Cut = cuts[r.Difference]
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}
