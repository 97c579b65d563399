package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

const testWords = "# a comment\nfrob\nout of\n"

func TestProseCount_Go(t *testing.T) {
	long := strings.Repeat("x", maxColumns-2)
	for name, c := range map[string]struct {
		source string
		want   map[string]int
	}{
		"comment with the name":    {"// F tells it.\nfunc F() {}", map[string]int{"code.comments": 1}},
		"comment without the name": {"// Is it?\nfunc F() {}", map[string]int{"code.comments": 1}},
		"method":                   {"// F: are there?\nfunc (t *T[A]) F() {}", map[string]int{"code.comments": 1}},
		"verb":                     {"// F returns what is.\nfunc F() {}", nil},
		"type":                     {"// T is a type.\ntype T int", nil},
		"constants":                {"const mostPods, maxPods, most = 1, 2, 3", map[string]int{"code.limits": 2}},
		"variables":                {"var LongestWait, mostly = 1, 2", map[string]int{"code.limits": 1}},
		"local limit":              {"func F() { const most = 1 }", nil},
		"word":                     {"// FROB, frobs.\nvar a = 1 // frob", map[string]int{"code.words": 2}},
		"phrase on two lines":      {"// Out\n// of it.\nvar a = 1", map[string]int{"code.words": 1}},
		"word of a string":         {"var a = \"frob\"", nil},
		"line":                     {"//" + long + "\n//\u00e9" + long, map[string]int{"code.lines": 1}},
		"tab":                      {"func F() {\n\t//" + long[3:] + "\n}", map[string]int{"code.lines": 1}},
		"26 methods":               {strings.Repeat("func (t T[A, B]) F() {}\n", 26), map[string]int{"code.types": 26}},
		"600 lines":                {strings.Repeat("\n", 597), nil},
		"601 lines":                {strings.Repeat("\n", 598), map[string]int{"code.files": 601}},
		"25 methods of two types":  {strings.Repeat("func (t T) F() {}\nfunc (u U) F() {}\n", 25), nil},
	} {
		t.Run(name, func(t *testing.T) {
			count := newProseCount(testWords)
			if err := count.goFile("a/b.go", []byte("package a\n\n"+c.source+"\n")); err != nil {
				t.Fatal(err)
			}
			count.types()
			checkCounts(t, count, c.want)
		})
	}
}

func TestProseCount_Document(t *testing.T) {
	long := strings.Repeat("x", maxColumns+1)
	for name, c := range map[string]struct {
		text string
		want map[string]int
	}{
		"words":          {"# Frob\n\nIt is out\nof it, `frob`.", map[string]int{"docs.words": 3}},
		"fenced block":   {"```\nfrob\n```\nfrob", map[string]int{"docs.words": 1}},
		"indented block": {"a\n\n    frob\n    frob\nfrob", map[string]int{"docs.words": 1}},
		"list":           {"- a\n    frob", map[string]int{"docs.words": 1}},
		"table":          {"| frob |\n|---|\n| " + long + " |", map[string]int{"docs.words": 1}},
		"line":           {"a\n" + long + "\n\n    " + long, map[string]int{"docs.lines": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			count := newProseCount(testWords)
			count.document("docs/a.md", c.text)
			checkCounts(t, count, c.want)
		})
	}
}

func TestProseCount_Sleeps(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want map[string]int
	}{
		"a sleep":     {"time.Sleep(1); if true { time.Sleep(1) }", map[string]int{"tests.sleeps": 2}},
		"a closure":   {"f(func() { time.Sleep(1) })", map[string]int{"tests.sleeps": 1}},
		"a loop":      {"for ; !ok(); time.Sleep(1) {}; for range 9 { time.Sleep(1) }", nil},
		"a bubble":    {"synctest.Test(t, func(t *testing.T) { time.Sleep(1) })", nil},
		"other names": {"Sleep(1); clock.Sleep(1); time.After(1)", nil},
	} {
		t.Run(name, func(t *testing.T) {
			count := newProseCount(testWords)
			if err := count.testFile("a/b_test.go", []byte("package a\n\nfunc F() { "+c.body+" }\n")); err != nil {
				t.Fatal(err)
			}
			checkCounts(t, count, c.want)
		})
	}
}

// checkCounts compares the number of places of each rule.
func checkCounts(t *testing.T, count *proseCount, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for rule, places := range count.places {
		got[rule] = len(places)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v: %v", got, want, count.places)
	}
}

func TestProseCount_Place(t *testing.T) {
	count := newProseCount(testWords)
	source := "package a\n\n/* One,\nfrob. */\n\n// Two,\n// out\n// of.\nvar a = 1\n"
	if err := count.goFile("a.go", []byte(source)); err != nil {
		t.Fatal(err)
	}
	if got, want := lines(count.places["code.words"]), "    a.go:4: frob\n    a.go:7: out of\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestProseFiles(t *testing.T) {
	for file, want := range map[string]string{
		"netctl/main.go":               "code",
		"netctl/main_test.go":          "",
		"api/feed/feed.pb.go":          "",
		"api/v1/zz_deepcopy.go":        "",
		"api/v1/a_generated.go":        "",
		"netctl/testdata/a.go":         "",
		"tools/testsum/main.go":        "",
		"toolshed/main.go":             "code",
		"README.md":                    "document",
		"CHANGELOG.md":                 "",
		"docs/decisions/001-a.md":      "document",
		"docs/a.svg":                   "",
		"netplugin/pipeline/README.md": "",
	} {
		t.Run(file, func(t *testing.T) {
			got := ""
			switch {
			case isProductCode(file, []string{"tools"}):
				got = "code"
			case isDocument(file):
				got = "document"
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestProseFigures(t *testing.T) {
	want := map[string]int{"code.lines": 12, "docs.words": 0}
	text := formatFigures(want)
	if got, err := parseFigures(text); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v of:\n%s", got, err, text)
	}
	for _, bad := range []string{"code.lines", "code.lines x", "unknown 1", "<<<<<<< HEAD"} {
		t.Run(bad, func(t *testing.T) {
			if got, err := parseFigures(text + bad + "\n"); err == nil {
				t.Errorf("got %v", got)
			}
		})
	}
	rose := "code.lines rose from 12 to 13: " + proseRules["code.lines"]
	fell := "code.lines fell from 12 to 11: scripts/generate writes it to " + figuresFile
	for name, c := range map[string]struct {
		have int
		want []complaint
	}{
		"equal": {12, nil},
		"rose":  {13, []complaint{{rule: "code.lines", text: rose, rose: true}}},
		"fell":  {11, []complaint{{rule: "code.lines", text: fell, fell: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compareFigures(map[string]int{"code.lines": c.have}, want); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	if list := compareFigures(map[string]int{"code.types": 0}, want); len(list) != 1 {
		t.Errorf("a figure that prose.txt lacks: %v", list)
	}
}

func TestProseLikelyPlaces(t *testing.T) {
	added := parseDiff("--- a/a.go\n+++ b/a.go\n@@ -3 +3 @@ func F() {\n-x\n+y\n" +
		"@@ -9,0 +10,2 @@\n+x\n+y\n@@ -30,2 +31,0 @@\n")
	var places, want []place
	for i := range 31 {
		places = append(places, place{"a.go", i, "x"}, place{"b.go", i, "x"})
	}
	for _, line := range []int{3, 10, 11} {
		want = append(want, place{"a.go", line, "x"})
	}
	if got := likely(places, added); lines(got) != lines(want) {
		t.Errorf("got:\n%swant:\n%s", lines(got), lines(want))
	}
	if got := likely(places, nil); lines(got) != lines(places[:10]) {
		t.Errorf("without added lines:\n%s", lines(got))
	}
}
