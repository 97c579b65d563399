// Package trace reads what ovs-vswitchd's ofproto/trace prints (ovs-vswitchd(8), "ofproto/trace"): which flows a
// packet meets.
package trace

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// Trace is one packet's way. A visit to conntrack ends a pass, and another begins behind it.
type Trace struct {
	Passes []Pass
}

// Pass is the way from the port, or from conntrack.
type Pass struct {
	Resumed string // how it came back from conntrack, as "ct_state=new|trk"; empty in the first
	Steps   []Step
	// Datapath is what the switch does at the end, in the datapath's own terms.
	Datapath string
}

// Step is a flow that was met, or that none was.
type Step struct {
	Table    uint8
	Missed   bool // no flow of the table matches
	Match    string
	Priority uint16
	Cookie   uint64
	Actions  []string
}

// toController matches the datapath actions of a packet that leaves by no port and of which a controller gets one or
// more copies, some with a meter of their own.
var toController = regexp.MustCompile(`^(?:` + copied + `,)*(?:(?:meter\(\d+\),)*` + user + `|` + copied + `|` +
	metered + `|drop)$`)

const (
	user    = `userspace\(pid=\d+,controller\([^()]*\)\)`
	metered = `meter\(\d+\)`
	copied  = `sample\(sample=100\.0%,actions\((?:meter\(\d+\),)?` + user + `\)\)`
)

// Dropped reports whether the packet is dropped or sent to a controller only.
func (t *Trace) Dropped() bool {
	if len(t.Passes) == 0 {
		return true
	}
	end := t.Passes[len(t.Passes)-1].Datapath
	return toController.MatchString(end)
}

// Last returns the last step, and false if there is none.
func (t *Trace) Last() (Step, bool) {
	for i := len(t.Passes) - 1; i >= 0; i-- {
		if steps := t.Passes[i].Steps; len(steps) > 0 {
			return steps[len(steps)-1], true
		}
	}
	return Step{}, false
}

var (
	stepLine   = regexp.MustCompile(`^( *)(\d{1,3})\. (.*)$`)
	flowText   = regexp.MustCompile(`^(.*?),? ?priority (\d+)(?:, cookie 0x([0-9a-f]+))?$`)
	resumeLine = regexp.MustCompile(`^recirc\(0x[0-9a-f]+\) - resume conntrack(?: with (\S+))?`)
)

// Parse fails on text that ends without saying what the datapath does.
func Parse(text string) (*Trace, error) {
	t := &Trace{}
	pass := &Pass{}
	var open []opened
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := resumeLine.FindStringSubmatch(line); m != nil {
			pass.Resumed = m[1]
			continue
		}
		if m := stepLine.FindStringSubmatch(line); m != nil {
			step, err := parseStep(m[2], m[3])
			if err != nil {
				return nil, err
			}
			open = append(within(open, len(m[1])+len(m[2])), opened{len(pass.Steps), len(m[1]) + len(m[2])})
			pass.Steps = append(pass.Steps, step)
			continue
		}
		if actions, ok := strings.CutPrefix(line, "Datapath actions: "); ok {
			pass.Datapath = actions
			t.Passes = append(t.Passes, *pass)
			pass, open = &Pass{}, nil
			continue
		}
		if action, ok := actionOf(line); ok {
			if open = within(open, len(line)-len(strings.TrimLeft(line, " "))); len(open) > 0 {
				s := &pass.Steps[open[len(open)-1].step]
				s.Actions = append(s.Actions, action)
			}
		}
	}
	if len(t.Passes) == 0 || len(pass.Steps) > 0 {
		return nil, errors.New("ofproto/trace: the text ends before what the datapath does")
	}
	return t, nil
}

// opened is a step whose actions may follow; more than one where an action resubmits. Depth is where its table's
// number ends: what is of it is further in.
type opened struct{ step, depth int }

// within returns the open lines that can contain a line of this depth.
func within(open []opened, depth int) []opened {
	for len(open) > 0 && open[len(open)-1].depth >= depth {
		open = open[:len(open)-1]
	}
	return open
}

// noMatchAsked is a table miss while a connection is there of which Open vSwitch does not know the version yet. The
// packet goes to controllers and nowhere else.
const noMatchAsked = `No match, and a "packet-in" is called for.`

func parseStep(table, flow string) (Step, error) {
	n, err := strconv.ParseUint(table, 10, 8)
	if err != nil {
		return Step{}, errors.New("ofproto/trace: table " + table)
	}
	s := Step{Table: uint8(n)}
	if flow == "No match." || flow == noMatchAsked {
		s.Missed = true
		return s, nil
	}
	m := flowText.FindStringSubmatch(flow)
	if m == nil {
		return Step{}, errors.New("ofproto/trace: no priority in " + strconv.Quote(flow))
	}
	s.Match = m[1]
	priority, err := strconv.ParseUint(m[2], 10, 16)
	if err != nil {
		return Step{}, errors.New("ofproto/trace: priority " + m[2])
	}
	s.Priority = uint16(priority)
	if m[3] != "" {
		if s.Cookie, err = strconv.ParseUint(m[3], 16, 64); err != nil {
			return Step{}, errors.New("ofproto/trace: cookie " + m[3])
		}
	}
	return s, nil
}

// actionOf takes the lines below a step; those with an arrow are Open vSwitch's remarks.
func actionOf(line string) (string, bool) {
	action := strings.TrimSpace(line)
	indented := len(line) > 0 && line[0] == ' '
	return action, indented && action != "" && !strings.HasPrefix(action, "->") && !strings.HasPrefix(action, ">")
}
