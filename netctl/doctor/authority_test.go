package doctor

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

var made struct {
	once sync.Once
	text []byte
	err  error
}

// realAuthority is a certificate authority that is valid now, and for years.
func realAuthority(t *testing.T) string {
	t.Helper()
	made.once.Do(func() {
		dir, err := os.MkdirTemp("", "fk-doctor")
		if made.err = err; err != nil {
			return
		}
		defer os.RemoveAll(dir)
		if made.err = mtls.Init(dir); made.err == nil {
			made.text, made.err = os.ReadFile(filepath.Join(dir, "ca.crt"))
		}
	})
	if made.err != nil {
		t.Fatal(made.err)
	}
	return string(made.text)
}
