package upload

import (
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch/ingest"
	"bowstring/flight/catalog"
	"bowstring/schema"
)

// Request is the JSON of a DoPut command. Exactly one of the fields is set.
type Request struct {
	Put       *Command   `json:"put"`
	Selection *Selection `json:"selection"`
}

// Command says where rows are stored and what their columns are.
type Command struct {
	Dataset string            `json:"dataset"`
	Split   string            `json:"split"`
	Mode    string            `json:"mode"`
	Key     string            `json:"key"`
	Blobs   []string          `json:"blobs"`
	Media   map[string]string `json:"media"`
	Source  string            `json:"source"`
	Commit  string            `json:"commit"`
	// On and Missing are for the modes merge and delete. On is the column by which rows
	// find existing ones. Missing says what happens to a row that finds none.
	On          string   `json:"on"`
	Missing     string   `json:"missing"`
	DropColumns []string `json:"drop_columns"`
}

// Selection names the snapshot whose positions are uploaded.
type Selection struct {
	catalog.Ref
}

// batchAck is the JSON of the result for a batch. Rows and Bytes are sums over the call, so
// that a client may skip results.
type batchAck struct {
	Batch int64 `json:"batch"`
	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// putAck is the JSON of the last result. Changed is false if the dataset has the rows
// already, so that no snapshot was made.
type putAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
}

// noteAck is the JSON of a result that explains a consequence for readers of the dataset.
type noteAck struct {
	Note string `json:"note"`
}

// selectionAck is the JSON of the result for a selection.
type selectionAck struct {
	Dataset   string `json:"dataset"`
	Snapshot  int64  `json:"snapshot"`
	Selection string `json:"selection"`
	Rows      int64  `json:"rows"`
}

// MaxSource bounds Command.Source in bytes. Each snapshot stores it.
const MaxSource = 4 << 10

// Parse reads the descriptor of a DoPut, sets defaults, and checks all fields. A path is a
// short form: a dataset, and a split if wanted.
func Parse(d *flight.FlightDescriptor) (Request, error) {
	var req Request
	switch d.GetType() {
	case flight.DescriptorPATH:
		path := d.GetPath()
		if len(path) < 1 || len(path) > 2 {
			return req, &schema.FieldError{Field: "descriptor.path", Got: fmt.Sprintf("%d elements", len(path)),
				Want: "a dataset, and a split if it is not to be " + ingest.DefaultSplit}
		}
		req.Put = &Command{Dataset: path[0]}
		if len(path) == 2 {
			req.Put.Split = path[1]
		}
	case flight.DescriptorCMD:
		if err := schema.DecodeJSON("request", d.GetCmd(), &req); err != nil {
			return req, err
		}
	default:
		return req, &schema.FieldError{Field: "descriptor.type", Got: d.GetType().String(), Want: "PATH or CMD"}
	}
	if (req.Put == nil) == (req.Selection == nil) {
		return req, &schema.FieldError{Field: "request", Got: "neither or both of its fields",
			Want: `either "put" or "selection"`}
	}
	if p := req.Put; p != nil {
		if p.Mode == "" {
			p.Mode = string(ingest.Create)
		}
		if p.Split == "" {
			p.Split = ingest.DefaultSplit
		}
		if p.Commit == "" {
			p.Commit = commitAtEnd
		}
		return req, p.check()
	}
	return req, req.Selection.Check()
}

// check returns a schema.FieldError for the first wrong field.
func (p *Command) check() error {
	// Lists are bounded first: later checks are linear in them.
	for field, n := range map[string]int{"put.blobs": len(p.Blobs), "put.media": len(p.Media),
		"put.drop_columns": len(p.DropColumns)} {
		if n > schema.MaxColumns {
			return &schema.FieldError{Field: field, Got: fmt.Sprintf("%d names", n),
				Want: fmt.Sprintf("at most %d", schema.MaxColumns)}
		}
	}
	if err := schema.CheckName("put.dataset", p.Dataset); err != nil {
		return err
	}
	if err := schema.CheckName("put.split", p.Split); err != nil {
		return err
	}
	if _, err := ingest.ParseMode(p.Mode); err != nil && !p.alters() {
		return &schema.FieldError{Field: "put.mode", Got: schema.Quote(p.Mode),
			Want: `"create", "append", "replace", "merge" or "delete"`}
	}
	if err := p.checkAlters(); err != nil {
		return err
	}
	if p.Commit != commitAtEnd && p.Commit != commitByMessage {
		return &schema.FieldError{Field: "put.commit", Got: schema.Quote(p.Commit), Want: `"end" or "message"`}
	}
	if len(p.Source) > MaxSource {
		return &schema.FieldError{Field: "put.source", Got: fmt.Sprintf("%d bytes", len(p.Source)),
			Want: fmt.Sprintf("at most %d", MaxSource)}
	}
	return nil
}

// Values of Command.Mode that package ingest does not have: their rows change existing
// ones.
const (
	modeMerge  = "merge"
	modeDelete = "delete"
)

// alters reports whether the rows change existing rows.
func (p *Command) alters() bool { return p.Mode == modeMerge || p.Mode == modeDelete }

// checkAlters checks the fields of the modes merge and delete, and sets their defaults. In
// other modes these fields must be absent: a client that sets them expects a change that
// would not happen.
func (p *Command) checkAlters() error {
	switch {
	case !p.alters() && p.On != "":
		return &schema.FieldError{Field: "put.on", Got: schema.Quote(p.On),
			Want: `nothing, unless the mode is "merge" or "delete"`}
	case !p.alters() && p.Missing != "":
		return &schema.FieldError{Field: "put.missing", Got: schema.Quote(p.Missing),
			Want: `nothing, unless the mode is "merge" or "delete"`}
	case p.Mode != modeMerge && p.Mode != string(ingest.Replace) && len(p.DropColumns) > 0:
		return &schema.FieldError{Field: "put.drop_columns", Got: "some",
			Want: `none, unless the mode is "merge" or "replace"`}
	case !p.alters():
		return nil
	case p.Key != "":
		return &schema.FieldError{Field: "put.key", Got: schema.Quote(p.Key),
			Want: `none where rows are found by "on", of which the ids of new ones are derived`}
	}
	if p.On == "" {
		p.On = schema.IDColumn
	}
	if p.Missing == "" {
		p.Missing = string(ingest.MissingError)
		if p.Mode == modeDelete { // a client whose answer was lost may repeat the delete
			p.Missing = string(ingest.MissingIgnore)
		}
	}
	if _, err := ingest.ParseMissing(p.Missing); err != nil {
		return &schema.FieldError{Field: "put.missing", Got: schema.Quote(p.Missing),
			Want: `"error", "insert" or "ignore"`}
	}
	if p.Mode == modeDelete && p.Missing == string(ingest.MissingInsert) {
		return &schema.FieldError{Field: "put.missing", Got: `"insert"`, Want: `"error" or "ignore" where rows are deleted`}
	}
	return nil
}

// commitMessage is the JSON of the metadata message that commits a put, if the command
// requires one. Rows, if set, must be the number of rows that arrived.
type commitMessage struct {
	Commit bool   `json:"commit"`
	Rows   *int64 `json:"rows"`
}

// Values of Command.Commit. With "message", a stream that ends early in good order commits
// nothing.
const (
	commitAtEnd     = "end"
	commitByMessage = "message"
)

// expectedCommit is the condition under which a put commits. The goroutine of the stream
// uses it.
type expectedCommit struct {
	byMessage bool
	message   *commitMessage // nil before it arrives
}

// expectCommit makes a stream watch for the message that commits the put. It sets the
// stream's callbacks.
func expectCommit(put *Command, in *Incoming) *expectedCommit {
	e := &expectedCommit{byMessage: put.Commit == commitByMessage}
	// A message with metadata only is the commit, if the command requires one.
	in.onMetadata = func(b []byte) error {
		if !e.byMessage {
			return nil // metadata without rows has no meaning here
		}
		if e.message != nil {
			return &schema.FieldError{Field: "commit", Got: "it a second time",
				Want: "one message, after the last batch"}
		}
		e.message = &commitMessage{}
		if err := schema.DecodeJSON("metadata", b, e.message); err != nil {
			return err
		}
		if !e.message.Commit {
			return &schema.FieldError{Field: "commit", Got: "false or nothing",
				Want: "true; to abort, cancel the call"}
		}
		return nil
	}
	// A batch after the commit would change the number of rows that was agreed on.
	in.onData = func() error {
		if e.message != nil {
			return &schema.FieldError{Field: "stream", Got: "a batch after the commit", Want: "its end"}
		}
		return nil
	}
	return e
}

// check returns an error unless the put may be committed with this number of rows.
func (e *expectedCommit) check(rows int64) error {
	if !e.byMessage {
		return nil
	}
	if e.message == nil {
		return &schema.FieldError{Field: "stream", Got: "its end",
			Want: `the metadata message {"commit": true} before it; nothing was committed`}
	}
	if e.message.Rows != nil && *e.message.Rows != rows {
		return &schema.FieldError{Field: "commit.rows", Got: fmt.Sprint(*e.message.Rows),
			Want: fmt.Sprintf("%d, the rows that came; nothing was committed", rows)}
	}
	return nil
}

// like sets the blob columns of the command. An existing column of the dataset keeps its
// kind. A new column gets the kind that it would have in a new dataset.
func (p *Command) like(base, in *arrow.Schema) error {
	// The command's own list is replaced, because newUpload reads the blob columns from it.
	named := p.Blobs
	p.Media = maps.Clone(p.Media)
	if p.Media == nil {
		p.Media = map[string]string{}
	}
	blobs := []string{}
	for _, f := range in.Fields() {
		f.Type = valueType(f.Type)
		at := base.FieldIndices(f.Name)
		dropped := slices.Contains(p.DropColumns, f.Name)
		if len(at) > 0 && !dropped {
			if have := base.Field(at[0]); schema.IsBlob(have) {
				media := p.Media[f.Name]
				if media != "" && media != schema.Media(have) {
					return &schema.FieldError{Field: "put.media." + schema.Shown(f.Name), Got: schema.Quote(media),
						Want: schema.Quote(schema.Media(have)) + ", as in the dataset"}
				}
				blobs = append(blobs, f.Name)
				continue
			}
			if slices.Contains(named, f.Name) {
				blobs = append(blobs, f.Name) // refused later: it holds no blobs in the dataset
			}
			continue
		}
		if f.Name == schema.IDColumn {
			continue
		}
		isBlob, err := p.isBlob(f, in)
		if err != nil {
			return err
		}
		if isBlob {
			blobs = append(blobs, f.Name)
		}
	}
	for _, name := range named {
		if len(in.FieldIndices(name)) == 0 {
			blobs = append(blobs, name) // refused later: the upload has no such column
		}
	}
	p.Blobs = blobs
	return nil
}
