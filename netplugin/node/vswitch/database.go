package vswitch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// makeDatabase makes the database, or brings it to the schema that the programs have, be that newer or older. One that
// cannot be read is set aside: netplugin recreates the bridge and the ports of running pods.
func (c *Config) makeDatabase(ctx context.Context) error {
	switch _, err := os.Stat(c.Database); {
	case errors.Is(err, fs.ErrNotExist):
		return c.createDatabase(ctx)
	case err != nil:
		return err
	}
	convert, err := c.tool(ctx, "ovsdb-tool", "needs-conversion", c.Database, c.Schema)
	if err == nil && convert == "yes" {
		err = c.convert(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	aside := c.Database + "-unreadable-" + time.Now().UTC().Format("20060102T150405.000")
	c.Logger.Error("the switch's database cannot be read; it is set aside, and running pods have no network "+
		"until netplugin has recreated the bridge and its ports", "file", aside, "error", err)
	if err := os.Rename(c.Database, aside); err != nil {
		return err
	}
	return c.createDatabase(ctx)
}

func (c *Config) createDatabase(ctx context.Context) error {
	next := c.Database + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := c.tool(ctx, "ovsdb-tool", "create", next, c.Schema); err != nil {
		return fmt.Errorf("make the switch's database: %w", err)
	}
	return os.Rename(next, c.Database)
}

// convert keeps the database of before beside it, one for each schema.
func (c *Config) convert(ctx context.Context) error {
	have, err := c.tool(ctx, "ovsdb-tool", "db-version", c.Database)
	if err != nil {
		return err
	}
	want, err := c.tool(ctx, "ovsdb-tool", "schema-version", c.Schema)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(c.Database)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Database+"-"+strings.ReplaceAll(have, "/", "_"), data, 0o600); err != nil {
		return fmt.Errorf("keep the switch's database of before: %w", err)
	}
	c.Logger.Info("converting the switch's database", "from", have, "to", want)
	if _, err := c.tool(ctx, "ovsdb-tool", "convert", c.Database, c.Schema); err != nil {
		return fmt.Errorf("convert the switch's database from %s to %s: %w", have, want, err)
	}
	return nil
}
