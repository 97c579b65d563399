package macvtap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ParseConfig reads the explicit configuration: a JSON array of {name, lowerDevice, mode, capacity}. A nil Config is that there is none:
// the file is empty, or the array. An entry with a mistake is refused, with a Problem, and the others go on; an error is that the whole is
// no such array.
func ParseConfig(raw []byte) (*Config, error) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	if raw[0] != '[' {
		return nil, errors.New(`the configuration must be a JSON array such as [{"name": "dataplane", "lowerDevice": "eth0"}]`)
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, fmt.Errorf("the configuration is no JSON: %w", placed(raw, err))
	}
	if len(entries) == 0 {
		return nil, nil
	}
	c := &Config{}
	names := map[string]int{}
	for i, entry := range entries {
		c.add(i, entry, names)
	}
	return c, nil
}

// placed says where in the text JSON ends to be JSON.
func placed(raw []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	before := raw[:min(int(syntax.Offset), len(raw))]
	return fmt.Errorf("line %d: %w", bytes.Count(before, []byte("\n"))+1, err)
}

func (c *Config) refuse(entry int, format string, args ...any) {
	c.Problems = append(c.Problems, Problem{Origin{Source: FromConfig, Entry: entry}, fmt.Sprintf(format, args...)})
}

// add takes an entry in, or refuses it; names has those of the entries before.
func (c *Config) add(i int, raw json.RawMessage, names map[string]int) {
	e := ConfigEntry{Entry: i, Mode: DefaultMode, Capacity: DefaultCapacity}
	capacity, err := e.read(raw)
	if err != nil {
		c.refuse(i, "%s", err)
		return
	}
	if why := e.wrong(); why != "" {
		c.refuse(i, "%s", why)
		return
	}
	if before, ok := names[e.Name]; ok {
		c.refuse(i, "name %q is that of [%d] already", e.Name, before)
		return
	}
	names[e.Name] = i
	if e.Mode == Passthru {
		if capacity && e.Capacity > 1 {
			c.refuse(i, "passthru gives the whole lowerDevice to one pod: capacity is 1, not %d", e.Capacity)
		}
		e.Capacity = 1
	}
	c.Entries = append(c.Entries, e)
}

func (e *ConfigEntry) wrong() string {
	if why := CheckResource(e.Name); why != "" {
		return "name: " + why
	}
	if IsGlob(e.LowerDevice) {
		return fmt.Sprintf("lowerDevice: %q is a pattern: the configuration takes names of interfaces", e.LowerDevice)
	}
	if why := CheckLink(e.LowerDevice); why != "" {
		return "lowerDevice: " + why
	}
	if why := checkMode(e.Mode); why != "" {
		return why
	}
	return checkCapacity("capacity", e.Capacity)
}

// read takes the fields of an object, each of which may be there once; capacity tells whether it was.
func (e *ConfigEntry) read(raw json.RawMessage) (capacity bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return false, fmt.Errorf(`%s is no entry: write {"name": ..., "lowerDevice": ...}`, short(raw))
	}
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return false, err
		}
		field, _ := key.(string)
		if seen[field] {
			return false, fmt.Errorf("%s is there twice", field)
		}
		seen[field] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return false, err
		}
		if err := e.set(field, value); err != nil {
			return false, err
		}
	}
	if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for _, field := range []string{"name", "lowerDevice"} {
		if !seen[field] {
			return false, fmt.Errorf("%s is missing", field)
		}
	}
	return seen["capacity"], nil
}

func (e *ConfigEntry) set(field string, value json.RawMessage) error {
	switch field {
	case "name":
		return text(field, value, &e.Name)
	case "lowerDevice":
		return text(field, value, &e.LowerDevice)
	case "mode":
		return text(field, value, (*string)(&e.Mode))
	case "capacity":
		return whole(field, value, &e.Capacity)
	}
	for _, known := range []string{"name", "lowerDevice", "mode", "capacity"} {
		if strings.EqualFold(known, field) {
			return fmt.Errorf("there is no field %q: write %s", field, known)
		}
	}
	return fmt.Errorf("there is no field %q: an entry has name, lowerDevice, mode and capacity", field)
}

func text(field string, value json.RawMessage, to *string) error {
	if value[0] != '"' {
		return fmt.Errorf("%s is %s, and must be a string in quotes", field, short(value))
	}
	return json.Unmarshal(value, to)
}

func whole(field string, value json.RawMessage, to *int) error {
	var n int32
	if value[0] == 'n' || json.Unmarshal(value, &n) != nil {
		return fmt.Errorf("%s is %s, and must be a whole number from 1 to %d, without quotes", field, short(value), MaxCapacity)
	}
	*to = int(n)
	return nil
}

// short is the beginning of a value, for messages.
func short(value json.RawMessage) string {
	const most = 40
	text := []rune(string(value))
	if len(text) <= most {
		return string(text)
	}
	return string(text[:most]) + "..."
}
