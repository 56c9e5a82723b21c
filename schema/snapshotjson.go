package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// recordVersion is the newest version of a snapshot's record.
const recordVersion = 2

// snapshotJSON is the stored form of a Snapshot.
type snapshotJSON struct {
	Version int       `json:"version,omitempty"` // 0 and 1: no chunk has pages
	Dataset string    `json:"dataset"`
	Number  int64     `json:"number"`
	Parent  int64     `json:"parent"`
	Created time.Time `json:"created"`
	Source  string    `json:"source"`
	Schema  []byte    `json:"schema"` // the IPC schema message, in base64
	Splits  []Split   `json:"splits"`
	Chunks  []Chunk   `json:"chunks"`
}

// MarshalJSON writes the record of the snapshot as stores keep it. The schema
// is its Arrow IPC message in base64.
func (s Snapshot) MarshalJSON() ([]byte, error) {
	message, err := encodeSchema(s.Schema)
	if err != nil {
		return nil, err
	}
	version := 0
	if slices.ContainsFunc(s.Chunks, func(c Chunk) bool { return c.Pages > 0 }) {
		version = recordVersion
	}
	out := snapshotJSON{version, s.Dataset, s.Number, s.Parent, s.Created.UTC(), s.Source, message, s.Splits, s.Chunks}
	if out.Splits == nil {
		out.Splits = []Split{}
	}
	if out.Chunks == nil {
		out.Chunks = []Chunk{}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. A record that is not one is an
// ErrDataLoss.
func (s *Snapshot) UnmarshalJSON(b []byte) error {
	var in snapshotJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("%w: snapshot record: %w", ErrDataLoss, err)
	}
	if in.Version < 0 || in.Version > recordVersion {
		return fmt.Errorf("%w: snapshot record of version %d; this bowstring knows up to %d", ErrDataLoss, in.Version,
			recordVersion)
	}
	schema, err := decodeSchema(in.Schema)
	if err != nil {
		return fmt.Errorf("snapshot record: %w", err)
	}
	if err := CheckSchema(schema); err != nil {
		return fmt.Errorf("%w: snapshot record: %s", ErrDataLoss, err.Error()) // the record is broken, not a request
	}
	*s = Snapshot{in.Dataset, in.Number, in.Parent, in.Created, in.Source, schema, in.Splits, in.Chunks}
	return nil
}
