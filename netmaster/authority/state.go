package authority

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

// State is the authority, as it is in the Secret. It is not changed but copied.
type State struct {
	Signing *mtls.Authority
	// Longest is how long the longest-lived certificate of Signing may live.
	Longest time.Duration
	// Next will sign, once all who trust Signing have had time to trust it too.
	Next *mtls.Authority
	// Since is from when on Next was seen published; zero: it was not yet.
	Since time.Time
	// Retired have signed, and are trusted until nothing that they signed is valid.
	Retired []Retired
}

// Retired is a former authority, without its key.
type Retired struct {
	Cert  *x509.Certificate
	Until time.Time
}

// Lives are how long things live.
type Lives struct {
	Leaf, Authority time.Duration
	// Overlap is how long a new authority is trusted before it signs.
	Overlap time.Duration
}

// Check refuses lives of which one outlives what it rests on.
func (l Lives) Check() error {
	switch {
	case l.Leaf < time.Minute || l.Overlap <= 0 || l.Authority <= 0:
		return errors.New("a certificate lives for a minute at least, and an authority and its overlap are not without time")
	case l.Authority/4 < l.Leaf+l.Overlap:
		return fmt.Errorf("an authority that lives for %s is too short for certificates of %s and an overlap of %s: four times their sum is the least", l.Authority, l.Leaf, l.Overlap)
	}
	return nil
}

const (
	// slack is for what a netmaster that has not heard of a switch may still sign with the former authority, and for clocks.
	slack = time.Hour
	// mostRetired bounds what is trusted, whatever somebody does.
	mostRetired = 8
)

// Bundle is whom to trust, those that sign or will sign first.
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

// step is what the state is to be now, where certificates of these authorities are published; what is said of the change, and nothing if
// there is none. It makes one change at a time.
func (s *State) step(now time.Time, lives Lives, published []*x509.Certificate) (*State, string, error) {
	next := *s
	next.Retired = slices.DeleteFunc(slices.Clone(s.Retired), func(r Retired) bool { return !now.Before(r.Until) || !now.Before(r.Cert.NotAfter) })
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
	case s.Since.IsZero() || s.Since.After(now.Add(slack)): // or by a clock that was far ahead
		next.Since = now
		return &next, "the next authority is published", nil
	case now.Sub(s.Since) < lives.Overlap && now.Before(s.Signing.Cert.NotAfter): // nobody trusts one that has expired
		return s, "", nil
	}
	return s.turn(now, lives), "the next authority signs from now on", nil
}

// renewal is when the next one is to be made: with a third of its time left.
func renewal(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// rotate makes the next authority.
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

// turn has the next authority sign.
func (s *State) turn(now time.Time, lives Lives) *State {
	retired := append([]Retired{{s.Signing.Cert, now.Add(s.Longest + slack)}}, s.Retired...)
	return &State{Signing: s.Next, Longest: lives.Leaf, Retired: retired[:min(len(retired), mostRetired)]}
}

// Wire format: one document, so that nobody ever sees half of it.
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

// encode writes what parse reads.
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

// parse reads what encode wrote. Anything that is not understood is refused: nobody guesses whom to trust.
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
	if len(d.Retired) > mostRetired {
		return nil, fmt.Errorf("it has %d former authorities, more than %d", len(d.Retired), mostRetired)
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
