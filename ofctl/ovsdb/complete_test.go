package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

// half is a replica that the library is filling: each List sees one table more.
type half struct {
	all   rows
	lists int
	whole int // lists until all tables are filled
}

func (h *half) List(_ context.Context, result any) error {
	h.lists++
	empty := h.lists <= h.whole
	switch to := result.(type) {
	case *[]openVSwitch:
		*to = slices.Clone(h.all.roots)
	case *[]bridge:
		for _, b := range h.all.bridges {
			*to = append(*to, b)
		}
	case *[]port:
		for _, p := range h.all.ports {
			if !empty {
				*to = append(*to, p)
			}
		}
	case *[]iface:
		for _, i := range h.all.interfaces {
			if !empty {
				*to = append(*to, i)
			}
		}
	case *[]mirror:
		for _, m := range h.all.mirrors {
			if !empty {
				*to = append(*to, m)
			}
		}
	default:
		return fmt.Errorf("no table of %T", result)
	}
	return nil
}

func database() rows {
	number := 7
	return rows{
		roots:      []openVSwitch{{UUID: "r", Bridges: []string{"b"}}},
		bridges:    map[string]bridge{"b": {UUID: "b", Name: "fk0", Ports: []string{"p"}, Mirrors: []string{"m"}}},
		ports:      map[string]port{"p": {UUID: "p", Name: "fk-gw", Interfaces: []string{"i"}}},
		interfaces: map[string]iface{"i": {UUID: "i", Name: "fk-gw", Ofport: &number}},
		mirrors:    map[string]mirror{"m": {UUID: "m"}},
	}
}

func TestComplete_WaitsForEveryRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &half{all: database(), whole: 21}
		r, err := complete(t.Context(), h)
		if err != nil || len(r.ports) != 1 || len(r.interfaces) != 1 || h.lists < h.whole {
			t.Errorf("after %d lists %+v: %v", h.lists, r, err)
		}
		if _, err := complete(t.Context(), &half{all: database(), whole: 1 << 30}); !errors.Is(err, ErrIncomplete) {
			t.Errorf("a replica that stays incomplete: %v", err)
		}
	})
}

func TestRows_AreIncompleteWithoutAnyOne(t *testing.T) {
	if r := database(); !r.isComplete() || r.bridge("fk0") == nil || r.bridge("br0") != nil {
		t.Error("the whole database counts as incomplete")
	}
	for name, without := range map[string]func(*rows){
		"root":      func(r *rows) { r.roots = nil },
		"bridge":    func(r *rows) { clear(r.bridges) },
		"its row":   func(r *rows) { r.roots[0].Bridges = nil },
		"port":      func(r *rows) { clear(r.ports) },
		"interface": func(r *rows) { clear(r.interfaces) },
		"mirror":    func(r *rows) { clear(r.mirrors) },
	} {
		r := database()
		if without(&r); r.isComplete() {
			t.Errorf("without the %s it counts as complete", name)
		}
	}
}
