package hostnet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxWrites is how often applyNftables writes the tables before it returns an error: other programs flush the ruleset
// twice in a row.
const maxWrites = 4

// ErrNftablesChange is returned where another program changed Flowkeep's tables after each write.
var ErrNftablesChange = errors.New("another program keeps changing the nftables tables of Flowkeep: stop it, " +
	"or have it leave the tables arp flowkeep and inet flowkeep alone")

// Kept has a ruleset and its listing by the kernel, so that the tables are written only after a change by another
// program: some datagrams can be lost meanwhile. It is not safe for concurrent use, but for Invalidate.
type Kept struct {
	text, listing string
	cluster       *Cluster
	generation    uint32 // in which all was as it should be, if isSame
	isSame        bool
	isComplete    bool
	invalid       atomic.Bool
	touched       atomic.Bool
	ownLost       atomic.Bool // a rule or a route for the node's own packets was deleted since the last Setup
	unwatched     atomic.Bool // the last Watch failed
}

// IsComplete reports whether the last Setup could read what it compares of nftables.
func (k *Kept) IsComplete() bool { return k.isComplete }

// Touched reports whether a program, perhaps this one, has changed the tables since the last call, as far as Watch has
// received its messages. It is safe for concurrent use.
func (k *Kept) Touched() bool { return k.touched.Swap(false) }

func (k *Kept) touch() {
	k.touched.Store(true)
	k.Invalidate()
}

// Invalidate has the next Setup compare the tables, whatever their generation is. The kernel raises the generation of
// nftables some milliseconds before a transaction takes effect, so that Setup may have read the former state with the
// new number. Its messages, for which Watch does the same, come after that.
func (k *Kept) Invalidate() { k.invalid.Store(true) }

// of returns the listing of a ruleset. It is never read from the node's own tables: another program may have changed
// those at any time after a write.
func (k *Kept) of(text string) (listing string, err error) {
	if k.listing != "" && k.text == text {
		return k.listing, nil
	}
	return k.renewed(text)
}

func (k *Kept) renewed(text string) (listing string, err error) {
	if listing, err = listingOf(text); err != nil {
		return "", err
	}
	k.text, k.listing = text, listing
	return listing, nil
}

// filters sets Flowkeep's tables, and its rules in tables of others. It reads none of them if no program has changed
// nftables since a comparison found them as they should be.
func filters(cfg *Config) error {
	text := ruleset(cfg)
	if cfg.Kept == nil {
		_, _, err := acceptForwarded(cfg)
		return errors.Join(writeNftables(cfg, text), err)
	}
	k := cfg.Kept
	invalid := k.invalid.Swap(false)
	generation, generationErr := nftGeneration() // before the rest: later changes have another one
	if generationErr == nil && !invalid && k.isSame && k.text == text && k.generation == generation {
		return nil
	}
	err := applyNftables(cfg, text)
	isComplete, isForwarded, forwardErr := acceptForwarded(cfg)
	err = errors.Join(err, forwardErr)
	k.isComplete = isComplete
	k.generation, k.isSame = generation, isComplete && isForwarded && err == nil && generationErr == nil
	return err
}

// applyNftables sets the tables, each time in one transaction, until their listing is that of the ruleset.
func applyNftables(cfg *Config, text string) error {
	want, err := cfg.Kept.of(text)
	if err != nil { // the tables are needed, also where they cannot be compared
		return cmp.Or(writeNftables(cfg, text), err)
	}
	for writes := 0; ; writes++ {
		have, err := list()
		switch {
		case err == nil && have == want:
			return nil
		case err != nil && writes > 0: // they are there, and another write helps nothing
			return fmt.Errorf("list the nftables tables after a write: %w", err)
		case writes == maxWrites:
			return ErrNftablesChange
		}
		if writes == 2 { // nft(8) may be of another version than the one that the listing is of
			if want, err = cfg.Kept.renewed(text); err != nil {
				return err
			}
			if have == want {
				return nil
			}
		}
		if err := writeNftables(cfg, text); err != nil {
			return err
		}
	}
}

func writeNftables(cfg *Config, text string) error {
	if err := nft(text); err != nil {
		return err
	}
	cfg.changed(ObjectNftables, TableName)
	return nil
}

// listingOf returns the listing of a ruleset in a network namespace of its own, where no other program changes it.
func listingOf(text string) (listing string, err error) {
	if unshareErr := unshared(func() {
		if err = nft(text); err == nil {
			listing, err = list()
		}
	}); unshareErr != nil {
		return "", unshareErr
	}
	if err == nil && listing == "" {
		err = unix.ENOENT
	}
	if err != nil {
		return "", fmt.Errorf("list the nftables tables of a ruleset: %w", err)
	}
	return listing, nil
}

// unshared calls f in a new network namespace, on a thread that ends with it. It is never the process's first thread:
// /proc/self/net shows the namespace of that one.
func unshared(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err = unshared(f)
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("create a network namespace for nft: %w", err)
			return
		}
		f()
	}()
	<-done
	return err
}

func deleteNftables() error {
	return nft(
		"add table arp flowkeep\ndelete table arp flowkeep\nadd table inet flowkeep\ndelete table inet flowkeep\n")
}

func nft(text string) error {
	_, err := runNft(text, "-f", "-")
	return err
}

// ownNft has the processes of runNft.
var ownNft children

// runNft runs nft(8), and returns its output. Tests replace it.
var runNft = func(input string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	var problem strings.Builder
	cmd := exec.Command("nft", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &problem
	err := ownNft.run(cmd)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("the program nft is missing: install nftables")
	}
	if err != nil {
		return nil, fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(problem.String()+out.String()))
	}
	return out.Bytes(), nil
}

// nftTables returns the names of Flowkeep's existing tables.
func nftTables() (names []string, err error) {
	out, err := runNft("", "list", "tables")
	if err != nil {
		return nil, fmt.Errorf("list nftables: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[2] == "flowkeep" && nftFamilies[f[1]] != 0 {
			names = append(names, "nftables "+strings.Join(f, " "))
		}
	}
	return names, nil
}
