package query

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (p *place) captured(pod string, spec *inspect.CaptureSpec) (list []inspect.Captured, err error) {
	err = p.Follow(p.admin, &inspect.Question{Kind: inspect.AskCapture, ID: pod, Capture: spec}, func(a *inspect.Answer) error {
		var c inspect.Captured
		list = append(list, c)
		return json.Unmarshal(a.Body, &list[len(list)-1])
	})
	return list, err
}

func TestCapture(t *testing.T) {
	p := newPlace(t)
	p.nodes.answers["node1"] = []string{`{"interface":"fk1"}`, `{"node":"node7","pod":"x/y","packets":3,"frames":[{"data":"aGk=","length":2}],"end":"over"}`}
	list, err := p.captured("shop/db", &inspect.CaptureSpec{Filter: "tcp", Count: 3})
	if err != nil || len(list) != 2 || list[1].Packets != 3 || string(list[1].Frames[0].Data) != "hi" || list[1].End != "over" {
		t.Errorf("%+v, %v", list, err)
	}
	if c := list[1]; c.Node != "node1" || c.Pod != "shop/db" {
		t.Errorf("the node speaks for others: %+v", c)
	}
	if q := p.nodes.asked[0]; q.Kind != inspect.QueryCapture || q.Capture == nil || q.Capture.Pod != "shop/db" || q.Capture.Filter != "tcp" || q.Capture.Count != 3 {
		t.Errorf("asked %+v", q)
	}
	for pod, code := range map[string]codes.Code{"shop/nobody": codes.NotFound, "shop/host": codes.FailedPrecondition, "shop/new": codes.FailedPrecondition, "": codes.NotFound} {
		if _, err := p.captured(pod, &inspect.CaptureSpec{}); status.Code(err) != code {
			t.Errorf("%q: %v", pod, err)
		}
	}
	for _, spec := range []*inspect.CaptureSpec{nil, {Filter: "host me"}} {
		if _, err := p.captured("shop/db", spec); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	if len(p.nodes.asked) != 1 {
		t.Errorf("nodes were asked %d times", len(p.nodes.asked))
	}
}

// What a node answers that is older than captures, or makes no sense, is told as such.
func TestCaptureOfOtherVersions(t *testing.T) {
	p := newPlace(t)
	p.nodes.answers["node1"] = errors.New(`this netplugin knows no query "capture"`)
	_, err := p.captured("shop/db", &inspect.CaptureSpec{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "node1") || !strings.Contains(err.Error(), "older") {
		t.Error(err)
	}
	p.nodes.answers["node1"] = []string{"{"}
	if _, err := p.captured("shop/db", &inspect.CaptureSpec{}); err == nil || !strings.Contains(err.Error(), "decode its response") {
		t.Error(err)
	}
	if _, err := p.Answer(p.admin, &inspect.Question{Kind: inspect.AskCapture, ID: "shop/db"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("one answer: %v", err)
	}
}
