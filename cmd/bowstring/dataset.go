package main

import (
	"fmt"
	"strconv"
	"strings"

	"bowstring/schema"
)

// datasetRef is a dataset as written on the command line: NAME or NAME@SNAPSHOT.
type datasetRef struct {
	Name     string
	Snapshot int64 // 0: the newest
}

// UnmarshalText reads NAME[@SNAPSHOT].
func (r *datasetRef) UnmarshalText(text []byte) error {
	name, number, versioned := strings.Cut(string(text), "@")
	if err := schema.CheckName("dataset", name); err != nil {
		return err
	}
	*r = datasetRef{Name: name}
	if versioned {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("got snapshot %q, want a number from 1, as in %s@1", number, name)
		}
		r.Snapshot = n
	}
	return nil
}

func (r datasetRef) String() string {
	if r.Snapshot == 0 {
		return r.Name
	}
	return fmt.Sprintf("%s@%d", r.Name, r.Snapshot)
}

// splitRef is a dataset or one split of it: NAME[@SNAPSHOT][/SPLIT].
type splitRef struct {
	datasetRef
	Split string // "": all
}

// UnmarshalText reads NAME[@SNAPSHOT][/SPLIT].
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
