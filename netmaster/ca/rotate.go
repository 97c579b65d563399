package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// Reason is the reason for a rotation by an administrator.
type Reason string

// Reasons for a rotation.
const (
	// Planned trusts the next CA before it signs, and the former one while its certificates are valid.
	Planned Reason = ""
	// Lost is a lost key. The next CA signs at once; the former one is trusted while its certificates are valid.
	Lost Reason = "lost"
	// Stolen is a leaked key. The next CA signs at once, and the former one is no longer trusted.
	Stolen Reason = "stolen"
)

// Rotate creates another CA, which running netmasters read from the cluster. It returns a message about the
// consequences.
func Rotate(ctx context.Context, store Store, why Reason, lives Lives, now time.Time) (said string, err error) {
	published, err := store.Published(ctx)
	if err != nil {
		return "", fmt.Errorf("read the published CA bundle: %w", err)
	}
	stored, err := store.Authority(ctx)
	if err != nil {
		return "", fmt.Errorf("read the CA Secret: %w", err)
	}
	state, broken := standing(stored, published)
	switch {
	case why == Planned && broken != nil:
		return "", broken
	case why == Lost && broken == nil:
		return "", errors.New(
			"the authority is not lost: netmaster pki rotate, without --lost, changes it without a gap")
	case why == Planned:
		return plan(ctx, store, stored, state, lives, now)
	}
	return replace(ctx, store, stored, published, why, lives, now)
}

// standing returns the CA that nodes trust, or an error if there is none.
func standing(stored, published Stored) (*State, error) {
	if len(stored.Text) == 0 {
		return nil, errLost
	}
	state, err := parse(stored.Text)
	if err != nil {
		return nil, fmt.Errorf("the Secret of the authority was changed by hand: %w", err)
	}
	list, err := mtls.ParseBundle(published.Text)
	if err == nil && len(list) > 0 && !mtls.Among(list, state.Signing.Cert) {
		return nil, errForeign
	}
	return state, nil
}

func plan(ctx context.Context, store Store, stored Stored, state *State, lives Lives, now time.Time) (string, error) {
	next, _, err := state.rotate(now, lives)
	if err != nil {
		return "", err
	}
	text, err := next.encode()
	if err == nil {
		err = store.PutAuthority(ctx, stored, text)
	}
	if err != nil {
		return "", fmt.Errorf("write the CA Secret: %w", err)
	}
	return "a new authority was made: netmaster publishes it, and signs with it when it was published for its " +
		"--authority-overlap", nil
}

// replace publishes the new CA before it stores the key, as netmaster signs only with a published CA.
func replace(ctx context.Context, store Store, stored, published Stored, why Reason, lives Lives,
	now time.Time) (string, error) {
	a, err := mtls.NewAuthority(now, lives.Authority)
	if err != nil {
		return "", err
	}
	next := &State{Signing: a, Longest: lives.Leaf}
	former, err := mtls.ParseBundle(published.Text)
	if err != nil { // no CA is trusted because of an unreadable bundle
		former = nil // certificates that cannot be read prove nothing
	}
	if why == Lost {
		next.Retired = retire(former, now.Add(lives.Leaf+slack))
	}
	text, err := next.encode()
	if err == nil {
		err = store.Publish(ctx, published, bytes.Join([][]byte{mtls.Encode(a.Cert), mtls.Encode(former...)}, nil))
	}
	if err != nil {
		return "", fmt.Errorf("publish the CA bundle: %w", err)
	}
	if err := store.PutAuthority(ctx, stored, text); err != nil {
		return "", fmt.Errorf("write the CA Secret: %w", err)
	}
	if err := keepPublished(ctx, store, a.Cert); err != nil {
		return "", fmt.Errorf("publish the CA bundle: %w", err)
	}
	said := "a new authority signs from now on; until the kubelet has brought its certificate to a node, in a " +
		"minute or two, that node cannot connect, and enforces what it has"
	if why == Stolen {
		said += "; certificates of the former CA are no longer trusted: issue certificate files again"
	}
	return said, nil
}

// keepPublished publishes a CA again if a netmaster that had read the old Secret overwrites the bundle.
func keepPublished(ctx context.Context, store Store, cert *x509.Certificate) error {
	for ctx.Err() == nil {
		published, err := store.Published(ctx)
		if err != nil {
			return err
		}
		list, err := mtls.ParseBundle(published.Text)
		if err == nil && mtls.Among(list, cert) {
			return nil
		}
		if err := store.Publish(ctx, published, mtls.Encode(append(list, cert)...)); err != nil &&
			!errors.Is(err, ErrChanged) {
			return err
		}
	}
	return ctx.Err()
}

func retire(list []*x509.Certificate, until time.Time) (all []Retired) {
	for _, c := range list[:min(len(list), maxRetired)] {
		all = append(all, Retired{c, until})
	}
	return all
}

// Line describes a CA to users.
type Line struct {
	Cert *x509.Certificate
	Role string
	// Until is the end of the role, if known.
	Until time.Time
}

// Show returns the CAs of the cluster.
func Show(ctx context.Context, store Store) ([]Line, error) {
	published, err := store.Published(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the published CA bundle: %w", err)
	}
	stored, err := store.Authority(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the CA Secret: %w", err)
	}
	state, err := standing(stored, published)
	if err != nil {
		return nil, err
	}
	all := []Line{{state.Signing.Cert, "signs", state.Signing.Cert.NotAfter}}
	if state.Next != nil {
		role := "is published next"
		if !state.Since.IsZero() {
			role = "is published since " + state.Since.UTC().Format(time.RFC3339) + ", and will sign"
		}
		all = append(all, Line{state.Next.Cert, role, state.Next.Cert.NotAfter})
	}
	for _, r := range state.Retired {
		all = append(all, Line{r.Cert, "is still trusted", r.Until})
	}
	return all, nil
}

// IssueAdmin writes admin.crt, admin.key and ca.crt to dir, and returns their expiry. They are valid as long as a
// node's certificate.
func IssueAdmin(ctx context.Context, store Store, dir string, now time.Time) (until time.Time, err error) {
	published, err := store.Published(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the published CA bundle: %w", err)
	}
	stored, err := store.Authority(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the CA Secret: %w", err)
	}
	state, err := standing(stored, published)
	if err != nil {
		return time.Time{}, err
	}
	return mtls.IssueAdminOf(dir, state.Signing, state.Bundle(), now, state.Longest)
}
