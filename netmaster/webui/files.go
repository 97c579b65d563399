package webui

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/docsite"
)

// types are the content types of the embedded files.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".txt":  "text/plain; charset=utf-8",
}

type file struct {
	body      []byte
	kind, tag string
}

func newFile(name string, body []byte) file {
	sum := sha256.Sum256(body)
	return file{body, types[path.Ext(name)], `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// assets serves the files by exact name. Browsers revalidate them each time.
func assets(files fs.FS) http.Handler {
	all := map[string]file{}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(files, name)
		all["/"+name] = newFile(name, body)
		return err
	})
	if err != nil {
		panic(err) // they are compiled in
	}
	all["/"] = all["/index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, all) })
}

// serveFile serves the file of the request's path. Browsers ask each time whether their copy is current.
func serveFile(w http.ResponseWriter, r *http.Request, all map[string]file) {
	f, ok := all[r.URL.Path]
	if !ok || f.kind == "" {
		fail(w, http.StatusNotFound, "there is nothing here")
		return
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}

// docsRoot is the path of the documentation.
const docsRoot = "/docs/"

// manual is the documentation of this version, rendered at the first request.
var manual = sync.OnceValue(func() *docsite.Site {
	site, err := docsite.Build(flowkeep.Documents, docsite.Options{Version: process.BuildVersion(), WebUI: "../"})
	if err != nil {
		panic(err) // the documents are compiled in, and a test renders them
	}
	return site
})

var manualFiles = sync.OnceValue(func() map[string]file {
	all := map[string]file{}
	for place, body := range manual().Files {
		all[docsRoot+place] = newFile(place, body)
		if folder, isIndex := strings.CutSuffix(place, "index.html"); isIndex {
			all[docsRoot+folder] = all[docsRoot+place]
		}
	}
	return all
})

// serveManual serves the documentation. The name of a document in the repository, docs/NAME.md, leads to its page.
func serveManual(w http.ResponseWriter, r *http.Request) {
	if place, isDocument := manual().Place(strings.TrimPrefix(r.URL.Path, "/")); isDocument {
		up := strings.Repeat("../", strings.Count(r.URL.Path, "/")-strings.Count(docsRoot, "/"))
		w.Header().Set("Location", cmp.Or(up, "./")+place) // relative, so that it is right behind a proxy
		w.WriteHeader(http.StatusFound)
		return
	}
	serveFile(w, r, manualFiles())
}

// helpFor returns the section of the documentation about a message, as a path from the page; empty if there is none.
func helpFor(message string) string {
	if place := manual().Help(message); place != "" {
		return docsRoot[1:] + place
	}
	return ""
}

// problemHelp returns the section of the documentation about a problem of the status, or the guide to troubleshooting.
func problemHelp(problem string) string {
	return cmp.Or(helpFor(problem), docsRoot[1:]+manual().Guide())
}
