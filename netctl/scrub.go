package main

import (
	"bytes"
	"regexp"
)

const leftOut = "(left out)"

// secret is what never is in a bundle, wherever it came from. What was not asked for cannot be in it; this is for what people wrote
// where it does not belong.
type secret struct {
	hints   []string // one of which is in each line, in lower case, that the pattern matches: much quicker to look for
	pattern *regexp.Regexp
	instead string
}

var privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`)

// secrets are private keys (privateKey), tokens, and passwords in URLs.
var secrets = []secret{
	{[]string{"eyj"}, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`), leftOut}, // JSON web tokens
	{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "$1 " + leftOut},
	{[]string{"://"}, regexp.MustCompile(`(\w+://[^/\s:@"]*):[^/\s@"]+@`), "${1}:" + leftOut + "@"},
}

// secretWords are for logs, settings and what Open vSwitch says. A label may be called token: what policies say is left as it is.
var secretWords = []secret{{[]string{"passw", "passphrase", "secret", "token", "psk", "key"},
	regexp.MustCompile(`(?i)((?:password|passwd|passphrase|secret|token|psk|api[-_]?key|private[-_]?key)["']?\s*[:=]\s*)(?:\\?"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}"']+)`), "${1}" + leftOut}}

func scrub(text []byte) []byte {
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privateKey.ReplaceAll(text, []byte(leftOut))
	}
	return without(text, secrets)
}

func scrubWords(text []byte) []byte { return without(scrub(text), secretWords) }

// without replaces secrets, none of which is longer than a line.
func without(text []byte, list []secret) []byte {
	lower := bytes.ToLower(text)
	hinted := list[:0:0]
	for _, s := range list {
		if s.in(lower) {
			hinted = append(hinted, s)
		}
	}
	if len(hinted) == 0 {
		return text
	}
	out := make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		lower := bytes.ToLower(line)
		for _, s := range hinted {
			if s.in(lower) {
				line = s.pattern.ReplaceAll(line, []byte(s.instead))
			}
		}
		out = append(out, line...)
	}
	return out
}

func (s *secret) in(lower []byte) bool {
	for _, hint := range s.hints {
		if bytes.Contains(lower, []byte(hint)) {
			return true
		}
	}
	return false
}
