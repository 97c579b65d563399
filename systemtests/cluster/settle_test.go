package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSettle_Sequences has the verdicts of one check after the other: h and p begin one that is hasty or patient; X and
// Y are denied ways that are open, L is an allowed packet that is lost, and ! an error. The last check repeats.
func TestSettle_Sequences(t *testing.T) {
	for name, c := range map[string]struct {
		checks string
		kind   string
		made   int // checks
	}{
		"met at once": {"h p", "", 2},
		"met later":   {"hX hXL hL h p", "", 5},
		"a hasty check took an open way for shut":   {"h pX pX p p", "", 5},
		"opens again after a patient check of all":  {"h pX p pX", Leak, 4},
		"opens after an allowed packet was lost":    {"h pL pL pX p p", Leak, 4},
		"opens while another way is open still":     {"h pX pX pXY p p", Leak, 4},
		"shut, and open again while another way is": {"h pXY pY pY pXY p p", Leak, 5},
		"a packet was lost of a way that was open":  {"h pXY pY pXY pX p p", "", 7},
		"opens again, and another check fails":      {"h pL pL pX! p p", Leak, 4},
		"a check that fails shows nothing":          {"h pL p! pX p p", "", 6},
		"an allowed packet is lost in both":         {"h pL p pL", Lost, 4},
		"an allowed packet is always lost":          {"hL", Late, 0},
		"never met":                                 {"hX", Leak, 0},
		"never met by patient checks":               {"h pX pX", Leak, 0},
		"hasty checks found another way open":       {"hY hX h p", "", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FLOWKEEP_SLOW", "1")
			synctest.Test(t, func(t *testing.T) {
				checks, made := strings.Fields(c.checks), 0
				s := settlement{expectations: 3, check: func(p Patience) (unmet []string, err error) {
					text := checks[min(made, len(checks)-1)]
					made++
					if want := map[byte]Patience{'h': hasty, 'p': patient}[text[0]]; p != want {
						return nil, errors.New("another patience")
					}
					for _, way := range text[1:] {
						if way == '!' {
							err = errors.New("no verdict")
							continue
						}
						unmet = append(unmet, map[rune]string{'X': Leak, 'Y': Leak, 'L': Lost}[way]+" "+string(way))
					}
					slices.Reverse(unmet) // in any order
					return unmet, err
				}}
				err := s.settle(t.Context(), 30*time.Second)
				kind := ""
				if err != nil {
					kind = kindOf(err.Error())
				}
				if kind != c.kind || c.made > 0 && made != c.made {
					t.Errorf("%v after %d checks, want %q after %d", err, made, c.kind, c.made)
				}
			})
		})
	}
}

// kindOf returns the kind of a failure as the gate reads it: a leak if a line begins with that word, else the first word
// of a line that names a kind.
func kindOf(text string) string {
	kind := text
	for line := range strings.Lines(text) {
		switch word, _, _ := strings.Cut(strings.TrimSpace(line), " "); {
		case word == Leak:
			return Leak
		case kind == text && (word == Lost || word == Late):
			kind = word
		}
	}
	return kind
}
