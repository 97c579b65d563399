package macvtap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ParseConfig reads the explicit configuration: a JSON array of {name, lowerDevice, mode, capacity}. A nil Config is that there is none:
// the file is empty, or the array. What macvtap-cni accepts is accepted as it means it there, with a Problem where it
// is probably a mistake. An entry that would not work there either is refused, with a Problem, and the others go on; an
// error is that the whole is no such array.
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
	for i, entry := range entries {
		c.add(i, entry)
	}
	c.keepLast()
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

// add takes an entry in, or refuses it.
func (c *Config) add(i int, raw json.RawMessage) {
	e := ConfigEntry{Entry: i}
	warnings, err := e.read(raw)
	if err != nil {
		c.refuse(i, "%s", err)
		return
	}
	warnings = append(warnings, e.complete()...)
	if why := e.wrong(); why != "" {
		c.refuse(i, "%s", why)
		return
	}
	for _, w := range warnings {
		c.refuse(i, "%s", w)
	}
	c.Entries = append(c.Entries, e)
}

// keepLast leaves of several entries of one name the last, as macvtap-cni does.
func (c *Config) keepLast() {
	last := map[string]int{}
	for _, e := range c.Entries {
		last[e.Name] = e.Entry
	}
	c.Entries = slices.DeleteFunc(c.Entries, func(e ConfigEntry) bool {
		if e.Entry == last[e.Name] {
			return false
		}
		c.refuse(e.Entry, "name %q is that of [%d] too: the last one counts", e.Name, last[e.Name])
		return true
	})
}

const passthruTakesOne = "passthru gives the whole lowerDevice to one pod: capacity is 1, not %d"

// complete sets what an entry leaves out, and returns warnings of values that are others now.
func (e *ConfigEntry) complete() (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if e.Mode == "" {
		e.Mode = DefaultMode
	}
	switch asked := e.Capacity; {
	case e.Mode == Passthru:
		if e.Capacity = 1; asked > 1 {
			warn(passthruTakesOne, asked)
		}
	case asked < 0:
		e.Capacity = DefaultCapacity
		warn("capacity is %d, which stands for the default, %d", asked, DefaultCapacity)
	case asked == 0:
		e.Capacity = DefaultCapacity
	case asked > MaxCapacity:
		e.Capacity = MaxCapacity
		warn("capacity is %d, and %d is the maximum that a kubelet accepts", asked, MaxCapacity)
	}
	return warnings
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
	return checkMode(e.Mode)
}

// read takes the fields of an object as Go's decoder of JSON does, which macvtap-cni uses: whatever their case, and the
// last of several. It returns warnings of what is probably a mistake.
func (e *ConfigEntry) read(raw json.RawMessage) (warnings []string, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf(`%s is no entry: write {"name": ..., "lowerDevice": ...}`, short(raw))
	}
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		written, _ := key.(string)
		field := fieldOf(written)
		switch {
		case field == "":
			warn("there is no field %q, and it is ignored: an entry has %s", written, strings.Join(configFields, ", "))
			continue
		case seen[field]:
			warn("%s is there more than once: the last one counts", field)
		case field != written:
			warn("the field %q is read as %s", written, field)
		}
		seen[field] = true
		if err := e.set(field, value); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, field := range []string{"name", "lowerDevice"} {
		if !seen[field] {
			return nil, fmt.Errorf("%s is missing", field)
		}
	}
	switch {
	case !seen["capacity"] || e.Capacity != 0:
	case e.Mode == Passthru:
		warn(passthruTakesOne, 0)
	default:
		warn("capacity is 0, which stands for the default, %d", DefaultCapacity)
	}
	return warnings, nil
}

var configFields = []string{"name", "lowerDevice", "mode", "capacity"}

// fieldOf returns the field that a key names, whatever its case; "": none.
func fieldOf(key string) string {
	for _, field := range configFields {
		if strings.EqualFold(field, key) {
			return field
		}
	}
	return ""
}

func (e *ConfigEntry) set(field string, value json.RawMessage) error {
	switch {
	case string(value) == "null": // it leaves the field as it is
		return nil
	case field == "name":
		return text(field, value, &e.Name)
	case field == "lowerDevice":
		return text(field, value, &e.LowerDevice)
	case field == "mode":
		return text(field, value, (*string)(&e.Mode))
	}
	return whole(field, value, &e.Capacity)
}

func text(field string, value json.RawMessage, to *string) error {
	if value[0] != '"' {
		return fmt.Errorf("%s is %s, and must be a string in quotes", field, short(value))
	}
	return json.Unmarshal(value, to)
}

func whole(field string, value json.RawMessage, to *int) error {
	var n int32
	if json.Unmarshal(value, &n) != nil {
		return fmt.Errorf("%s is %s, and must be a whole number, without quotes", field, short(value))
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
