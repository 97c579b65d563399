package v1alpha1

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestPatchKeepsEveryKey(t *testing.T) {
	for in, want := range map[string]string{
		`{"targetRef":{"group":"g","kind":"K","name":"n"},"merge":{"limits":{"b":null,"a":1.50}}}`: `{"limits":{"b":null,"a":1.50}}`,
		`{"targetRef":{"group":"g","kind":"K","name":"n"},"merge":{}}`:                             `{}`,
		`{"targetRef":{"group":"g","kind":"K","name":"n"},"merge":null}`:                           `null`,
		`{"targetRef":{"group":"g","kind":"K","name":"n"}}`:                                        `null`,
	} {
		var spec PolicyOverrideSpec
		if err := json.Unmarshal([]byte(in), &spec); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ Merge json.RawMessage }
		if err := json.Unmarshal(out, &back); err != nil || string(back.Merge) != want {
			t.Errorf("%s came back as %s (%v)", in, out, err)
		}
	}
	for _, bad := range []string{`{"merge":[]}`, `{"merge":"x"}`, `{"merge":1}`} {
		if err := json.Unmarshal([]byte(bad), new(PolicyOverrideSpec)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// A patch lives as long as who holds it, not as long as the buffer that it was read from.
func TestPatchIsACopy(t *testing.T) {
	raw := []byte(`{"a":1}`)
	var p Patch
	if err := p.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	twin := p.DeepCopy()
	raw[2], p.Raw[5] = 'b', '2'
	if string(p.Raw) != `{"a":2}` || string(twin.Raw) != `{"a":1}` {
		t.Errorf("%s and %s", p.Raw, twin.Raw)
	}
}

func FuzzPatch(f *testing.F) {
	for _, seed := range []string{`null`, `{}`, ` {"a":null} `, `[]`, `{`, ``, `{"a":{"b":[1,2.0]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p, again Patch
		if json.Unmarshal(raw, &p) != nil {
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatalf("%q became %q: %v", raw, out, err)
		}
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(out, twice) {
			t.Fatalf("%q became %q, and then %q", raw, out, twice)
		}
	})
}
