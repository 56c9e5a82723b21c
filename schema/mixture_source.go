package schema

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// A source that has only a weight, a name, a dataset, a snapshot and a split is one
// string in JSON, since tickets repeat all sources: NAME=DATASET@SNAPSHOT/SPLIT*WEIGHT. A
// missing part is left out together with its sign. A name that equals the dataset's is
// written as nothing before "=".

// plainSource is a source without these rules for its JSON.
type plainSource MixtureSource

// MarshalJSON writes the string if that is complete, and an object otherwise.
func (s MixtureSource) MarshalJSON() ([]byte, error) {
	said := MixtureSource{Name: s.Name, Dataset: s.Dataset, Snapshot: s.Snapshot, Tag: s.Tag, Split: s.Split,
		Weight: s.Weight, Within: s.Within}
	if !reflect.DeepEqual(s, said) || s.Dataset == "" || s.Weight == nil || s.Snapshot != 0 && s.Tag != "" {
		return marshal(plainSource(s)), nil
	}
	var text strings.Builder
	if s.Name != "" {
		if s.Name != s.Dataset {
			text.WriteString(s.Name)
		}
		text.WriteByte('=')
	}
	text.WriteString(FormatSnapshotName(s.Dataset, s.Snapshot, s.Tag))
	if s.Split != "" {
		text.WriteString("/" + s.Split)
	}
	text.WriteByte('*')
	text.Write(marshal(*s.Weight))
	return marshal(text.String()), nil
}

// UnmarshalJSON reads the output of MarshalJSON, in records.
func (s *MixtureSource) UnmarshalJSON(b []byte) error {
	return s.decodeJSON("source", bytes.TrimSpace(b))
}

// decodeJSON implements selfDecoder.
func (s *MixtureSource) decodeJSON(path string, raw []byte) error {
	*s = MixtureSource{}
	switch raw[0] {
	case '{':
		return decodeObject(path, path+".", raw, reflect.ValueOf(s).Elem())
	case '"':
		return s.decodeText(path, raw)
	}
	return wrongType(path, raw, `an object, or a string such as "name=dataset@3/train*0.7"`)
}

// decodeText decodes the string form, which is the JSON raw.
func (s *MixtureSource) decodeText(path string, raw []byte) error {
	text, weight, weighted := strings.Cut(unquote(raw), "*")
	text, split, divided := strings.Cut(text, "/")
	name, dataset, named := strings.Cut(text, "=")
	if !named {
		name, dataset = "", text
	}
	var err error
	if s.Dataset, s.Snapshot, s.Tag, err = ParseSnapshotName(path, dataset); err != nil {
		return err
	}
	if s.Name = name; named && name == "" {
		s.Name = s.Dataset
	}
	if s.Split = split; divided && split == "" {
		return CheckName(path+".split", split)
	}
	if !weighted {
		return nil // the check of the whole source finds what is missing
	}
	s.Weight = new(float64)
	if !json.Valid([]byte(weight)) {
		return wrongType(path+".weight", marshal(weight), "a number from 0")
	}
	return decodeValue(path+".weight", []byte(weight), reflect.ValueOf(s.Weight).Elem())
}
