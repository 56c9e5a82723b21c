package flight

import (
	"fmt"

	"bowstring/schema"
)

// commitMessage is the JSON of the metadata message that commits a put which
// asked for one.
type commitMessage struct {
	Commit bool   `json:"commit"`
	Rows   *int64 `json:"rows"`
}

// Values of putCommand.Commit.
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
func expectCommit(put *putCommand, in *incoming) *expectedCommit {
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
				Want: "true; to give up, cancel the call"}
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
