package console

import (
	"bytes"
	"net/http"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// maxBlob is the largest blob that is shown.
const maxBlob = 16 << 20

// blob sends a stored blob as it is, if it is an image or a sound by its first bytes. It
// is nothing that could run: whatever its bytes are, the browser takes them for that.
func (q *query) blob() error {
	n, err := q.number("position", 0, 1<<62)
	if err != nil {
		return err
	}
	column := q.form.Get("column")
	req, err := q.request(column)
	if err != nil {
		return err
	}
	if column == "" {
		return &schema.FieldError{Field: "column", Got: "nothing", Want: "the name of a column of images or sounds"}
	}
	req.Where, req.Split = "", ""
	req.Selection, req.Batch = &schema.SelectionRef{Positions: []int64{n}}, 1
	var content []byte
	found := false
	err = q.read(schema.Ticket{Request: req}, func(rec arrow.Record) (bool, error) {
		if rec.NumRows() != 1 {
			return true, nil
		}
		if b, ok := rec.Column(0).(*array.LargeBinary); ok && b.IsValid(0) {
			content, found = bytes.Clone(b.Value(0)), true
		}
		return false, nil
	})
	if status.Code(err) == codes.ResourceExhausted && !found {
		fail(q.w, http.StatusRequestEntityTooLarge, "RESOURCE_EXHAUSTED",
			"it is too large to be shown here, or the server is busy")
		return nil
	}
	if err != nil {
		return err
	}
	if !found {
		fail(q.w, http.StatusNotFound, "NOT_FOUND", "there is no such blob")
		return nil
	}
	kind := mediaType(content)
	if kind == "" || len(content) > maxBlob {
		fail(q.w, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", "it is no image or sound that browsers show")
		return nil
	}
	h := q.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", "inline")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	http.ServeContent(q.w, q.r, "", time.Time{}, bytes.NewReader(content)) // players ask for parts
	return nil
}

// mediaType is what a blob is by its first bytes, if it is an image or a sound that
// browsers show and that can carry no script; SVG can.
func mediaType(b []byte) string {
	switch kind := http.DetectContentType(b); kind {
	case "image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "audio/mpeg", "audio/wave":
		return kind
	case "application/ogg":
		return "audio/ogg"
	}
	switch {
	case bytes.HasPrefix(b, []byte("fLaC")):
		return "audio/flac"
	case len(b) > 2 && b[0] == 0xff && b[1]&0xe6 == 0xe2: // MPEG layer 3 without a tag
		return "audio/mpeg"
	case len(b) > 12 && (string(b[4:12]) == "ftypavif" || string(b[4:12]) == "ftypavis"):
		return "image/avif"
	}
	return ""
}
