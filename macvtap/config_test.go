package macvtap

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParseConfig(t *testing.T) {
	long := strings.Repeat("n", 64)
	for _, c := range []struct {
		text string
		want []string // entries and problems, in lines
	}{
		{`[{"name":"dataplane","lowerDevice":"eth0","mode":"vepa","capacity":30}]`, []string{"0: dataplane eth0 vepa 30"}},
		{`[{"name":"dataplane","lowerDevice":"eth0"}]`, []string{"0: dataplane eth0 bridge 100"}},
		{`[{"name":"p","lowerDevice":"eth0","mode":"passthru"}]`, []string{"0: p eth0 passthru 1"}},
		{`[{"name":"p","lowerDevice":"eth0","mode":"passthru","capacity":50}]`, []string{"0: p eth0 passthru 1",
			"[0]: passthru gives the whole lowerDevice to one pod: capacity is 1, not 50"}},
		{`[{"name":"p","lowerDevice":"eth0","capacity":0,"mode":"passthru"}]`, []string{"0: p eth0 passthru 1",
			"[0]: passthru gives the whole lowerDevice to one pod: capacity is 1, not 0"}},
		{`[{"name":"a.b-c_D","lowerDevice":"averylongname15"},{"name":"b","lowerDevice":"asixteencharname"},{"name":"` + long + `","lowerDevice":"eth0"},{"name":"` + long[1:] + `","lowerDevice":"eth0.7"}]`,
			[]string{"0: a.b-c_D averylongname15 bridge 100", "3: " + long[1:] + " eth0.7 bridge 100",
				`[1]: lowerDevice: no interface is called "asixteencharname": it has 16 characters, and 15 are the most`,
				`[2]: name: "` + long + `" is no resource name: it has 64 characters, and 63 are the most`}},
		{`[{"name":"a","lowerDevice":"eth0","capacity":0},{"name":"b","lowerDevice":"eth0","capacity":-1},{"name":"c","lowerDevice":"eth0","capacity":4097},{"name":"d","lowerDevice":"eth0","capacity":4096},{"name":"e","lowerDevice":"eth0","capacity":null}]`,
			[]string{"0: a eth0 bridge 100", "1: b eth0 bridge 100", "2: c eth0 bridge 4096", "3: d eth0 bridge 4096", "4: e eth0 bridge 100",
				"[0]: capacity is 0, which stands for the default, 100", "[1]: capacity is -1, which stands for the default, 100",
				"[2]: capacity is 4097, and 4096 is the maximum that a kubelet accepts", "[4]: capacity is 0, which stands for the default, 100"}},
		{`[{"name":"a","lowerDevice":"eth0","capacity":"25"},{"name":"a","lowerDevice":"eth0","capacity":2.5},{"name":"a","lowerDevice":"eth0","capacity":1e99}]`,
			[]string{`[0]: capacity is "25", and must be a whole number, without quotes`, `[1]: capacity is 2.5, and must be a whole number, without quotes`,
				`[2]: capacity is 1e99, and must be a whole number, without quotes`}},
		{`[{"name":true,"lowerDevice":"eth0"},{"name":"a","lowerDevice":false},{"name":"a","lowerDevice":"eth0","mode":1},{"name":"a","lowerDevice":"eth0","mode":"brigde"},{"name":"a","lowerDevice":"eth0","mode":""}]`,
			[]string{"4: a eth0 bridge 100", "[0]: name is true, and must be a string in quotes", "[1]: lowerDevice is false, and must be a string in quotes", "[2]: mode is 1, and must be a string in quotes",
				`[3]: mode "brigde" is none of bridge, private, vepa and passthru`}},
		{`[{"lowerDevice":"eth0"},{"name":"a"},{},7,null,["a"],{"name":"","lowerDevice":""},{"name":"b","lowerDevice":"eth0"}]`,
			[]string{"7: b eth0 bridge 100", "[0]: name is missing", "[1]: lowerDevice is missing", "[2]: name is missing", `[3]: 7 is no entry: write {"name": ..., "lowerDevice": ...}`,
				`[4]: null is no entry: write {"name": ..., "lowerDevice": ...}`, `[5]: ["a"] is no entry: write {"name": ..., "lowerDevice": ...}`, "[6]: name: the resource has no name"}},
		{`[{"name":"a","lowerDevice":"eth0","mod":"vepa"},{"Name":"b","lowerDevice":"eth0"},{"name":"c","lowerDevice":"eth0","lowerdevice":"eth1"},{"name":"x","name":"d","lowerDevice":"eth0"}]`,
			[]string{"0: a eth0 bridge 100", "1: b eth0 bridge 100", "2: c eth1 bridge 100", "3: d eth0 bridge 100",
				`[0]: there is no field "mod", and it is ignored: an entry has name, lowerDevice, mode, capacity`, `[1]: the field "Name" is read as name`,
				"[2]: lowerDevice is there more than once: the last one counts", "[3]: name is there more than once: the last one counts"}},
		{`[{"name":"a","lowerDevice":"eth0"},{"name":"a","lowerDevice":"eth1"},{"name":"a","lowerDevice":"eth2"}]`,
			[]string{"2: a eth2 bridge 100", `[0]: name "a" is that of [2] too: the last one counts`, `[1]: name "a" is that of [2] too: the last one counts`}},
		{`[{"name":"a b","lowerDevice":"eth/0"},{"name":"c","lowerDevice":"eth/0"},{"name":"c","lowerDevice":"eth*"}]`, []string{
			`[0]: name: "a b" is no resource name: it takes letters, digits and - _ . between them`, `[1]: lowerDevice: no interface is called "eth/0": names have no slashes, colons or spaces`,
			`[2]: lowerDevice: "eth*" is a pattern: the configuration takes names of interfaces`}},
	} {
		config, err := ParseConfig([]byte(c.text))
		if err != nil || config == nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		var got []string
		for _, e := range config.Entries {
			got = append(got, fmt.Sprintf("%d: %s %s %s %d", e.Entry, e.Name, e.LowerDevice, e.Mode, e.Capacity))
		}
		for _, p := range config.Problems {
			got = append(got, fmt.Sprintf("[%d]: %s", p.Origin.Entry, p.Message))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nnot\n%s", c.text, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestNoConfig(t *testing.T) {
	for _, text := range []string{"", "  \n", "[]", " [ ] ", "null"} {
		if config, err := ParseConfig([]byte(text)); config != nil || err != nil {
			t.Errorf("%q is %+v, %v", text, config, err)
		}
	}
	for text, want := range map[string]string{
		`{"name":"a"}`:                         "must be a JSON array",
		"- name: a":                            "must be a JSON array",
		"[{\"name\":\"a\"},\n{\"name\":True}]": "line 2",
		`[{"name":"a"}`:                        "line 1",
		`[{"name":"a"}] []`:                    "line 1",
	} {
		if config, err := ParseConfig([]byte(text)); config != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %+v, %v", text, config, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{`[{"name":"dataplane","lowerDevice":"eth0","mode":"vepa","capacity":30}]`, `[{"name":"a","name":"b"}]`, `[1,null,{}]`, `[{"capacity":1e3}]`, "[]", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := ParseConfig(raw)
		if config == nil {
			return
		}
		if err != nil {
			t.Fatal("a configuration and an error")
		}
		var entries []json.RawMessage
		if err := json.Unmarshal(raw, &entries); err != nil {
			t.Fatal(err)
		}
		told := map[int]bool{}
		names := map[string]bool{}
		for _, e := range config.Entries {
			if e.wrong() != "" || e.Mode == Passthru && e.Capacity != 1 || names[e.Name] {
				t.Errorf("%+v was taken", e)
			}
			names[e.Name], told[e.Entry] = true, true
		}
		for _, p := range config.Problems {
			told[p.Origin.Entry] = true
		}
		if len(told) != len(entries) {
			t.Errorf("of %d entries %d are told of", len(entries), len(told))
		}
	})
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"eth0", "eth[", `eth\`, "*", "a/b", "..", "ä", "x.y-z_1"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if (CheckResource(name) == "") != goodResource(name) {
			t.Errorf("resource %q: %q", name, CheckResource(name))
		}
		good := CheckParent(pattern) == ""
		e := Select(Input{Links: []Link{device(name)}, Policies: []Policy{{Resource: "x", Entries: []Entry{{Parent: pattern}}}}})
		if good == (len(e.Problems) > 0) {
			t.Errorf("parent %q: %q, %+v", pattern, CheckParent(pattern), e)
		}
	})
}
