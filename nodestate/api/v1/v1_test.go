package v1

import (
	"encoding/json"
	"testing"
)

func TestStateIsKeptAsWritten(t *testing.T) {
	for written, want := range map[string]string{
		`{"interfaces":null,"x-own":{"a":[1,"b",null]}}`: `{"interfaces":null,"x-own":{"a":[1,"b",null]}}`,
		`null`: `null`,
	} {
		var s State
		if err := json.Unmarshal([]byte(written), &s); err != nil {
			t.Fatal(err)
		}
		copied := s.DeepCopy()
		if len(s.Raw) > 0 {
			s.Raw[0] = '!'
		}
		if got, err := json.Marshal(copied); err != nil || string(got) != want {
			t.Errorf("%s became %s (%v)", written, got, err)
		}
	}
	var s State
	if err := json.Unmarshal([]byte(`["eth0"]`), &s); err == nil {
		t.Error("a list was taken for a state")
	}
}
