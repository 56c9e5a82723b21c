package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// static holds the page: modules of JavaScript, styles, and in vendor what others have
// made, with its licence; vendor/README.md says where from.
//
//go:embed static
var static embed.FS

// asset is a file of the page.
type asset struct {
	kind, tag    string
	plain, small []byte // small is compressed by gzip
}

// pages has the mux answer the files of the page.
func (c *Console) pages() {
	for name, a := range assets() {
		c.mux.HandleFunc("GET /console/"+name, a.serve)
	}
}

// assets reads the files, and compresses each once. The page itself has the name "{$}".
func assets() map[string]*asset {
	list := map[string]*asset{}
	err := fs.WalkDir(static, "static", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, ".md") {
			return err
		}
		b, err := static.ReadFile(p)
		if err != nil {
			return err
		}
		var small bytes.Buffer
		z, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := z.Write(b); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		name := strings.TrimPrefix(p, "static/")
		if name == "index.html" {
			name = "{$}"
		}
		list[name] = &asset{kind: kindOf(p), tag: `"` + hex.EncodeToString(sum[:12]) + `"`, plain: b,
			small: small.Bytes()}
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program, and read from memory
	}
	return list
}

func kindOf(p string) string {
	switch path.Ext(p) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(p))
}

func (a *asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Etag", a.tag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache") // another version of the program has other files
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.small
	}
	_, _ = w.Write(body) // whoever asked is gone, then
}
