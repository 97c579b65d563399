package labelcache

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
)

// A value in memcached is one part or several, each of them
//
//	version (1) | epoch (8) | term (8) | revision (8) | standing (8) |
//	part (1) | parts (1) | salt (16) | nonce (12) | sealed
//
// sealed with AES-256-GCM under a key of the salt, which is drawn for each value. The query and what is before the
// nonce are associated data: a value of another query or stamp, or a part at another place, does not open. The name of
// a part in memcached is a MAC of version, query and place, so that queries are not readable there either.
const (
	version    = 2
	saltSize   = 16
	partAt     = 1 + 4*8 // of the part's number, behind the stamp
	headerSize = partAt + 2 + saltSize
	nonceSize  = 12
	tagSize    = 16
	maxParts   = 16
	// partSize is the size of a part: less than an item of memcached, which has 1 MiB by default.
	partSize = 1<<20 - 4096
	maxValue = maxParts * partSize
)

var (
	errStale  = errors.New("the value is of another state of the cluster")
	errSealed = errors.New("the value does not open")
)

// sealer is the secret that the netmasters share.
type sealer []byte

// sum returns a MAC for a purpose.
func (s sealer) sum(purpose string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte("flowkeep labelcache " + purpose + "\x00"))
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// name returns the key in memcached of a part.
func (s sealer) name(query string, part int) string {
	return "flowkeep/" + base64.RawURLEncoding.EncodeToString(s.sum("name", []byte{version, byte(part)}, []byte(query)))
}

func (s sealer) aead(salt []byte) cipher.AEAD {
	block, err := aes.NewCipher(s.sum("seal", salt))
	if err != nil {
		panic(err) // the size of the key is right
	}
	out, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block is AES's
	}
	return out
}

// seal returns the parts of a value, of which there is at least one.
func (s sealer) seal(query string, at Stamp, value []byte) (parts [][]byte) {
	header := make([]byte, headerSize)
	header[0] = version
	binary.BigEndian.PutUint64(header[1:], at.Epoch)
	binary.BigEndian.PutUint64(header[9:], at.Term)
	binary.BigEndian.PutUint64(header[17:], at.Revision)
	binary.BigEndian.PutUint64(header[25:], at.Standing)
	n := max(1, (len(value)+partSize-1)/partSize)
	header[partAt+1] = byte(n)
	salt := header[headerSize-saltSize:]
	_, _ = rand.Read(salt) // it does not fail
	aead := s.aead(salt)
	for i := range n {
		header[partAt] = byte(i)
		part := value[i*partSize : min((i+1)*partSize, len(value))]
		nonce := make([]byte, nonceSize)
		_, _ = rand.Read(nonce)
		out := make([]byte, 0, headerSize+nonceSize+len(part)+tagSize)
		out = append(append(out, header...), nonce...)
		parts = append(parts, aead.Seal(out, nonce, part, associated(query, header)))
	}
	return parts
}

func associated(query string, header []byte) []byte { return append([]byte(query+"\x00"), header...) }

// opening is a value that is read part by part.
type opening struct {
	query string
	at    Stamp
	parts int    // 0: the first has yet to come
	next  int    // the part that comes next
	salt  []byte // of all parts
	value []byte
}

// open adds the next part. It returns errStale if that is genuine and of another stamp.
func (s sealer) open(o *opening, sealed []byte) error {
	if len(sealed) < headerSize+nonceSize+tagSize || sealed[0] != version {
		return errSealed
	}
	header, rest := sealed[:headerSize], sealed[headerSize:]
	salt := header[headerSize-saltSize:]
	text, err := s.aead(salt).Open(nil, rest[:nonceSize], rest[nonceSize:], associated(o.query, header))
	if err != nil {
		return errSealed
	}
	at := Stamp{
		Epoch:    binary.BigEndian.Uint64(header[1:]),
		Term:     binary.BigEndian.Uint64(header[9:]),
		Revision: binary.BigEndian.Uint64(header[17:]),
		Standing: binary.BigEndian.Uint64(header[25:]),
	}
	part, parts := int(header[partAt]), int(header[partAt+1])
	switch {
	case part != o.next || parts == 0 || parts > maxParts:
		return errSealed
	case at != o.at || part > 0 && (parts != o.parts || string(salt) != string(o.salt)):
		return errStale
	}
	o.parts, o.salt, o.next = parts, salt, o.next+1
	o.value = append(o.value, text...)
	return nil
}
