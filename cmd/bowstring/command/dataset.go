package command

import (
	"strings"

	"bowstring/schema"
)

// DatasetRef is datasetRef, for other programs.
type DatasetRef = datasetRef

// datasetRef is a dataset as written on the command line: NAME, NAME@SNAPSHOT or NAME@TAG.
type datasetRef struct {
	Name     string
	Snapshot int64 // 0: the newest, or the one with the tag
	Tag      string
}

// UnmarshalText reads NAME[@SNAPSHOT or @TAG].
func (r *datasetRef) UnmarshalText(text []byte) (err error) {
	r.Name, r.Snapshot, r.Tag, err = schema.ParseSnapshotName("dataset", string(text))
	return err
}

// pinned says whether one snapshot is named.
func (r datasetRef) pinned() bool { return r.Snapshot != 0 || r.Tag != "" }

func (r datasetRef) String() string { return schema.FormatSnapshotName(r.Name, r.Snapshot, r.Tag) }

// splitRef is a dataset or one split of it: NAME[@SNAPSHOT or @TAG][/SPLIT].
type splitRef struct {
	datasetRef
	Split string // "": all
}

// UnmarshalText reads NAME[@SNAPSHOT or @TAG][/SPLIT].
func (r *splitRef) UnmarshalText(text []byte) error {
	dataset, split, has := strings.Cut(string(text), "/")
	if err := r.datasetRef.UnmarshalText([]byte(dataset)); err != nil {
		return err
	}
	r.Split = split
	if has {
		return schema.CheckName("split", split)
	}
	return nil
}

func (r splitRef) String() string {
	if r.Split == "" {
		return r.datasetRef.String()
	}
	return r.datasetRef.String() + "/" + r.Split
}
