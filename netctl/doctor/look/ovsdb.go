package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/flowkeep/flowkeep/netctl/doctor"
)

// longestAnswer bounds what a server may answer.
const longestAnswer = 16 << 20

// call puts one question to a server that speaks JSON-RPC 1.0 on a unix socket, as ovsdb-server (RFC 7047) and ovs-vswitchd do.
func call(ctx context.Context, socket, method string, params []any, result any) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(map[string]any{"id": 0, "method": method, "params": params}); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	var reply struct {
		Result json.RawMessage
		Error  any
	}
	if err := json.NewDecoder(io.LimitReader(conn, longestAnswer)).Decode(&reply); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not answer", socket)
		}
		return fmt.Errorf("%s does not speak as Open vSwitch does: %w", socket, err)
	}
	if reply.Error != nil {
		return fmt.Errorf("%s refuses: %v", socket, reply.Error)
	}
	return json.Unmarshal(reply.Result, result)
}

// database reads what Open vSwitch says of itself.
func database(ctx context.Context, socket string) (doctor.Database, error) {
	selects := func(table string, columns ...string) any {
		return map[string]any{"op": "select", "table": table, "where": []any{}, "columns": columns}
	}
	var tables []struct {
		Rows  []map[string]any
		Error string
	}
	params := []any{
		"Open_vSwitch",
		selects("Open_vSwitch", "ovs_version", "datapath_types", "iface_types", "other_config"),
		selects("Bridge", "name"),
	}
	err := call(ctx, socket, "transact", params, &tables)
	if err != nil {
		return doctor.Database{}, err
	}
	var d doctor.Database
	for _, t := range tables {
		if t.Error != "" {
			return d, errors.New(t.Error)
		}
		for _, row := range t.Rows {
			d.Version += first(words(row["ovs_version"]))
			d.Datapaths = append(d.Datapaths, words(row["datapath_types"])...)
			d.Ifaces = append(d.Ifaces, words(row["iface_types"])...)
			d.Bridges = append(d.Bridges, words(row["name"])...)
			d.Waits = d.Waits || entry(row["other_config"], "flow-restore-wait") == "true"
		}
	}
	return d, nil
}

// words returns the strings of a column: one, or a set (RFC 7047, 5.1).
func words(v any) (out []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		if len(v) == 2 && v[0] == "set" {
			list, _ := v[1].([]any)
			for _, e := range list {
				if s, ok := e.(string); ok {
					out = append(out, s)
				}
			}
		}
	}
	return out
}

// entry returns the value of a key in a column that is a map of texts (RFC 7047, 5.1), "" without one.
func entry(v any, key string) string {
	of, _ := v.([]any)
	if len(of) != 2 || of[0] != "map" {
		return ""
	}
	pairs, _ := of[1].([]any)
	for _, p := range pairs {
		if pair, _ := p.([]any); len(pair) == 2 && pair[0] == key {
			text, _ := pair[1].(string)
			return text
		}
	}
	return ""
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}
