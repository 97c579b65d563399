package endpoints

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestManager_WhileAWriteHangs: a file that is not written holds up its own request alone, and is reported.
func TestManager_WhileAWriteHangs(t *testing.T) {
	begun, ended := make(chan struct{}, 9), make(chan struct{}, 9)
	m, err := Open(Config{
		StateDir: t.TempDir(),
		Logger:   slog.New(slog.DiscardHandler),
		Writing: func(string) func() {
			begun <- struct{}{}
			return func() { ended <- struct{}{} }
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	first := &Endpoint{Namespace: "shop", Name: "db", ContainerID: "c1", IfName: "eth0", Order: 1}
	if err := m.keep(first); err != nil {
		t.Fatal(err)
	}
	<-begun
	<-ended
	fifo := m.files.path("c1", "eth0") + unwritten
	if err := unix.Mkfifo(fifo, 0o600); err != nil { // to open it waits for a reader
		t.Fatal(err)
	}
	superseded := make(chan error, 1)
	go func() {
		superseded <- m.supersede(&Endpoint{Namespace: "shop", Name: "db", ContainerID: "c2", IfName: "eth0", Order: 2})
	}()
	<-begun
	listed := make(chan []Endpoint, 1)
	go func() { listed <- m.List() }()
	select {
	case list := <-listed:
		if len(list) != 1 || len(ended) != 0 {
			t.Errorf("listed %v, %d writes ended", list, len(ended))
		}
	case <-time.After(time.Minute):
		t.Error("the list waits for the disk")
	}
	reader, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := <-superseded; err != nil {
		t.Error(err)
	}
	<-ended
	if list := m.List(); len(list) != 1 || !list[0].Superseded {
		t.Errorf("listed %+v", list)
	}
}
