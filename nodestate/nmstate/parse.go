package nmstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// SizeLimit is the largest size of a document, in bytes. The API server takes none above 1.5 MiB; the state of a node
// with many pods may be larger.
const SizeLimit = 16 << 20

// Parse reads a document in JSON or YAML. The shape of the known parts is checked, and errors name the path
// ("interfaces[eth1].mtu: ..."), all at once; unknown keys are kept. Null and nothing are the nil State. Interfaces need names.
func Parse(raw []byte) (State, error) { return parse(raw, true) }

// ParseTemplate is Parse for policies, whose interfaces without a name stand for each matched interface.
func ParseTemplate(raw []byte) (State, error) { return parse(raw, false) }

func parse(raw []byte, named bool) (State, error) {
	document, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	SpellDesired(document)
	if err := Check(document, named); err != nil {
		return nil, err
	}
	return document, nil
}

// Decode reads a document without a look at its parts: what a node reports is taken as it is.
func Decode(raw []byte) (State, error) {
	if len(raw) > SizeLimit {
		return nil, fmt.Errorf("the state has %d bytes; at most %d can be taken", len(raw), SizeLimit)
	}
	converted, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	return decodeJSON(converted)
}

// DecodeStored is Decode for what the API server keeps: JSON, each key once. It is much quicker.
func DecodeStored(raw []byte) (State, error) {
	if len(raw) > SizeLimit {
		return nil, fmt.Errorf("the state has %d bytes; at most %d can be taken", len(raw), SizeLimit)
	}
	return decodeJSON(raw)
}

func decodeJSON(converted []byte) (State, error) {
	dec := json.NewDecoder(bytes.NewReader(converted))
	dec.UseNumber()
	var decoded any
	if err := dec.Decode(&decoded); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	if decoded == nil {
		return nil, nil
	}
	document, ok := numbers(decoded).(map[string]any)
	if !ok {
		return nil, errors.New("a network state must be an object such as {interfaces: [...]}")
	}
	return Spell(document), nil
}

// numbers turns json.Number into int64 where it is whole, else float64.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for n := range v {
			v[n] = numbers(v[n])
		}
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		f, err := v.Float64()
		if err != nil {
			return v.String() // beyond float64: kept as it was written
		}
		return f
	}
	return v
}
