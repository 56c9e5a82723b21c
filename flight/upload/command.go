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

// Request is the JSON of a DoPut command. One of the two is set.
type Request struct {
	Put       *Command   `json:"put"`
	Selection *Selection `json:"selection"`
}

// Command says where rows go and what their columns are.
type Command struct {
	Dataset string            `json:"dataset"`
	Split   string            `json:"split"`
	Mode    string            `json:"mode"`
	Key     string            `json:"key"`
	Blobs   []string          `json:"blobs"`
	Media   map[string]string `json:"media"`
	Source  string            `json:"source"`
	Commit  string            `json:"commit"`
	// On and Missing are for the modes merge and delete, of which the first finds rows by the column On.
	On          string   `json:"on"`
	Missing     string   `json:"missing"`
	DropColumns []string `json:"drop_columns"`
}

// Selection says of which snapshot the positions are.
type Selection struct {
	catalog.Ref
}

// batchAck is the JSON of the result for a batch: sums over the call.
type batchAck struct {
	Batch int64 `json:"batch"`
	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// putAck is the JSON of the last result.
type putAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
}

// noteAck is the JSON of a result that says what a put means for readers of the dataset.
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

// MaxSource bounds the text of Command.Source in bytes.
const MaxSource = 4 << 10

// Parse reads the descriptor of a DoPut.
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

func (p *Command) check() error {
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

// Values of Command.Mode by which rows change those that are there.
const (
	modeMerge  = "merge"
	modeDelete = "delete"
)

// alters reports whether the rows change those that are there.
func (p *Command) alters() bool { return p.Mode == modeMerge || p.Mode == modeDelete }

// checkAlters checks the fields of changes of what is there.
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
		if p.Mode == modeDelete { // so that it may be repeated where its answer was lost
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

// commitMessage is the JSON of the metadata message that commits a put which
// asked for one.
type commitMessage struct {
	Commit bool   `json:"commit"`
	Rows   *int64 `json:"rows"`
}

// Values of Command.Commit.
const (
	commitAtEnd     = "end"
	commitByMessage = "message"
)

// expectedCommit is what a put waits for before it commits.
type expectedCommit struct {
	byMessage bool
	message   *commitMessage // that came
}

// expectCommit has a stream look out for the message that commits a put which asked for one.
func expectCommit(put *Command, in *Incoming) *expectedCommit {
	e := &expectedCommit{byMessage: put.Commit == commitByMessage}
	in.onMetadata = func(b []byte) error {
		if !e.byMessage {
			return nil // a note without rows means nothing to us
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
	in.onData = func() error {
		if e.message != nil {
			return &schema.FieldError{Field: "stream", Got: "a batch after the commit", Want: "its end"}
		}
		return nil
	}
	return e
}

// check fails unless what came may be committed.
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

// like says in the command which columns of an upload hold blobs: those that do in the dataset, and of new ones those
// that would in a new dataset.
func (p *Command) like(base, in *arrow.Schema) error {
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
				blobs = append(blobs, f.Name) // which is refused, as it is none in the dataset
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
			blobs = append(blobs, name) // which is refused, too
		}
	}
	p.Blobs = blobs
	return nil
}
