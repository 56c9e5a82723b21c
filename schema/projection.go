package schema

import (
	"github.com/apache/arrow/go/v17/arrow"
)

// Projection says which columns a client gets, in which order and layout. It
// is immutable and safe for concurrent use.
type Projection struct {
	// Schema is what the client sees.
	Schema *arrow.Schema

	columns []outColumn
	blobs   []int
	layout  Layout
}
