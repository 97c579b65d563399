package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// State is the CA as stored in the Secret. Treat it as immutable.
type State struct {
	Signing *mtls.Authority
	// Longest is the longest validity of certificates signed by Signing.
	Longest time.Duration
	// Next will sign once everyone who trusts Signing has had time to trust it.
	Next *mtls.Authority
	// Since is when Next was first seen published; zero: not yet.
	Since time.Time
	// Retired are former CAs, trusted while their certificates are valid.
	Retired []Retired
}

// Retired is a former CA, without its key.
type Retired struct {
	Cert  *x509.Certificate
	Until time.Time
}

// Lives are periods of validity.
type Lives struct {
	Leaf, Authority time.Duration
	// Overlap is how long a new CA is trusted before it signs.
	Overlap time.Duration
}

// Check returns an error if a certificate could outlive its CA.
func (l Lives) Check() error {
	switch {
	case l.Leaf < time.Minute || l.Overlap <= 0 || l.Authority <= 0:
		return errors.New(
			"a certificate lives for a minute at least, and an authority and its overlap are not without time")
	case l.Authority/4 < l.Leaf+l.Overlap:
		return fmt.Errorf(
			"an authority that lives for %s is too short for certificates of %s and an overlap of %s: four times "+
				"their sum is the least",
			l.Authority,
			l.Leaf,
			l.Overlap,
		)
	}
	return nil
}

const (
	// slack covers clock skew, and certificates signed by a netmaster that has not seen a rotation yet.
	slack = time.Hour
	// maxRetired limits the former CAs that are trusted.
	maxRetired = 8
)

// Bundle returns the CA certificates to trust, those of present and future signers first.
func (s *State) Bundle() (list []*x509.Certificate) {
	list = append(list, s.Signing.Cert)
	if s.Next != nil {
		list = append(list, s.Next.Cert)
	}
	for _, r := range s.Retired {
		list = append(list, r.Cert)
	}
	return list
}

// step returns the next state, given the published certificates, and a description of the change; empty if there is
// none. Each call makes one change.
func (s *State) step(now time.Time, lives Lives, published []*x509.Certificate) (*State, string, error) {
	next := *s
	next.Retired = slices.DeleteFunc(slices.Clone(s.Retired),
		func(r Retired) bool { return !now.Before(r.Until) || !now.Before(r.Cert.NotAfter) })
	switch {
	case len(next.Retired) < len(s.Retired):
		return &next, "an authority that signed nothing that is still valid is no longer trusted", nil
	case s.Longest < lives.Leaf:
		next.Longest = lives.Leaf
		return &next, "certificates live for longer from now on", nil
	case s.Next == nil && !now.Before(renewal(s.Signing.Cert)):
		return s.rotate(now, lives)
	case s.Next == nil || !mtls.Among(published, s.Next.Cert):
		return s, "", nil
	case s.Since.IsZero() || s.Since.After(now.Add(slack)): // or the time is in the future because of clock skew
		next.Since = now
		return &next, "the next authority is published", nil
	case now.Sub(s.Since) < lives.Overlap && now.Before(s.Signing.Cert.NotAfter): // an expired CA is useless
		return s, "", nil
	}
	return s.turn(now, lives), "the next authority signs from now on", nil
}

// renewal returns when to replace a certificate: after two thirds of its validity.
func renewal(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// rotate creates the next CA.
func (s *State) rotate(now time.Time, lives Lives) (*State, string, error) {
	if s.Next != nil {
		return nil, "", errors.New("a rotation is under way already")
	}
	a, err := mtls.NewAuthority(now, lives.Authority)
	if err != nil {
		return nil, "", err
	}
	next := *s
	next.Next, next.Since = a, time.Time{}
	return &next, "a new authority was made, and will be trusted before it signs", nil
}

// turn makes the next CA the signing one.
func (s *State) turn(now time.Time, lives Lives) *State {
	retired := append([]Retired{{s.Signing.Cert, now.Add(s.Longest + slack)}}, s.Retired...)
	return &State{Signing: s.Next, Longest: lives.Leaf, Retired: retired[:min(len(retired), maxRetired)]}
}

// document is the stored format. It is one document, so that a state is never partly visible.
type document struct {
	Version int           `json:"version"`
	Longest string        `json:"longest"`
	Signing pair          `json:"signing"`
	Next    *pair         `json:"next,omitempty"`
	Since   *time.Time    `json:"since,omitempty"`
	Retired []retiredText `json:"retired,omitempty"`
}

type pair struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type retiredText struct {
	Certificate string    `json:"certificate"`
	Until       time.Time `json:"until"`
}

const documentVersion = 1

// encode encodes a state for parse.
func (s *State) encode() ([]byte, error) {
	d := document{Version: documentVersion, Longest: s.Longest.String()}
	var err error
	if d.Signing, err = pairOf(s.Signing); err != nil {
		return nil, err
	}
	if s.Next != nil {
		next, err := pairOf(s.Next)
		if err != nil {
			return nil, err
		}
		d.Next = &next
	}
	if !s.Since.IsZero() {
		since := s.Since.UTC()
		d.Since = &since
	}
	for _, r := range s.Retired {
		d.Retired = append(d.Retired, retiredText{string(mtls.Encode(r.Cert)), r.Until.UTC()})
	}
	return json.MarshalIndent(&d, "", "  ")
}

func pairOf(a *mtls.Authority) (pair, error) {
	cert, key, err := a.PEM()
	return pair{string(cert), string(key)}, err
}

// parse decodes a state. It rejects unknown fields.
func parse(text []byte) (*State, error) {
	var d document
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it cannot be read: something follows it")
	}
	if d.Version != documentVersion {
		return nil, fmt.Errorf("it is of version %d, and this netmaster reads %d", d.Version, documentVersion)
	}
	return d.state()
}

func (d *document) state() (*State, error) {
	s := &State{}
	var err error
	if s.Signing, err = d.Signing.authority(); err != nil {
		return nil, fmt.Errorf("the signing authority: %w", err)
	}
	if s.Longest, err = time.ParseDuration(d.Longest); err != nil || s.Longest < 0 {
		return nil, fmt.Errorf("how long certificates live: %.40q is no time", d.Longest)
	}
	if d.Next != nil {
		if s.Next, err = d.Next.authority(); err != nil {
			return nil, fmt.Errorf("the next authority: %w", err)
		}
	}
	if d.Since != nil && d.Next != nil {
		s.Since = *d.Since
	}
	if len(d.Retired) > maxRetired {
		return nil, fmt.Errorf("it has %d former authorities, more than %d", len(d.Retired), maxRetired)
	}
	for _, r := range d.Retired {
		list, err := mtls.ParseBundle([]byte(r.Certificate))
		if err != nil || len(list) != 1 {
			return nil, errors.Join(errors.New("a former authority is not one certificate"), err)
		}
		s.Retired = append(s.Retired, Retired{list[0], r.Until})
	}
	return s, nil
}

func (p *pair) authority() (*mtls.Authority, error) {
	return mtls.ParseAuthority([]byte(p.Certificate), []byte(p.Key))
}
