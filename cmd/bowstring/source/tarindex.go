package source

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"bowstring/schema"
)

// TarIndex is the format of an index of a tar.
type TarIndex string

// Formats of other tools.
const (
	// EnergonIndex is NAME.tar.idx of Megatron-Energon: the offset of each sample's first
	// header, and the end of the last sample, as little-endian uint64.
	EnergonIndex TarIndex = "energon"
	// DALIIndex is NAME.idx of DALI's wds2idx, version 1.2: a line of text for each
	// sample, with extension, offset, size and name of each member.
	DALIIndex TarIndex = "dali"
)

// Name returns the name of the index of a tar. DALI drops everything after the first dot.
func (k TarIndex) Name(tar string) string {
	if k == EnergonIndex {
		return tar + ".idx"
	}
	dir, base := path.Split(tar)
	stem, _, _ := strings.Cut(base, ".")
	return dir + stem + ".idx"
}

// indexedSample is consecutive members with one key.
type indexedSample struct {
	header  int64
	members []tarMember
}

// WriteIndex writes the index of a tar, by its name in f, to w. It reads only headers.
//
// The error wraps schema.ErrInvalid if the tar is compressed, has no sample, or has a
// member that no sample may have. A truncated tar is an error as well.
func (f *Files) WriteIndex(ctx context.Context, name string, kind TarIndex, w io.Writer) (err error) {
	in, err := f.openParts(ctx, filepath.Join(f.root, filepath.FromSlash(name)), windowBytes)
	if err != nil {
		return err
	}
	t, err := openTar(in, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if t.packed {
		return fmt.Errorf("%w: %s is compressed, and members of it have no place", schema.ErrInvalid, Quoted(name))
	}
	// All samples are collected before the first byte is written: DALI's first line has
	// their number, and a truncated tar must leave no index that looks whole.
	var samples []indexedSample
	for {
		// Consecutive members with one key are a sample, as in WebDataset.
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: %w", errCut, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", Quoted(name), err)
		}
		if m.problem != "" {
			return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(name), m.problem)
		}
		if n := len(samples); n == 0 || samples[n-1].members[0].key != m.key {
			samples = append(samples, indexedSample{header: m.header})
		}
		last := &samples[len(samples)-1]
		last.members = append(last.members, m)
	}
	end := wholeBlocks(t.dataEnd)
	switch {
	case end+2*tarBlock > in.Size():
		return fmt.Errorf("%s: %w: no end-of-archive mark", Quoted(name), errCut)
	case len(samples) == 0:
		return fmt.Errorf("%w: %s has no sample", schema.ErrInvalid, Quoted(name))
	}
	out := bufio.NewWriter(w)
	switch kind {
	case EnergonIndex:
		for _, s := range samples {
			_, _ = out.Write(binary.LittleEndian.AppendUint64(nil, uint64(s.header))) // bufio keeps an error until Flush
		}
		_, _ = out.Write(binary.LittleEndian.AppendUint64(nil, uint64(end)))
	case DALIIndex:
		if err := writeDALI(out, name, samples); err != nil {
			return err
		}
	default:
		return &schema.FieldError{Field: "index", Got: strconv.Quote(string(kind)), Want: "energon or dali"}
	}
	return out.Flush()
}

// writeDALI writes an index of DALI. Its fields are separated by spaces, so that names
// must not have any.
func writeDALI(out *bufio.Writer, name string, samples []indexedSample) error {
	_, _ = fmt.Fprintf(out, "v1.2 %d\n", len(samples)) // bufio keeps an error until Flush
	for _, s := range samples {
		for i, m := range s.members {
			if strings.ContainsAny(m.name, " \t\r\n") {
				return fmt.Errorf("%w: %s: member %s has a space in its name, which an index of DALI cannot have",
					schema.ErrInvalid, Quoted(name), Quoted(m.name))
			}
			_, ext, _ := strings.Cut(path.Base(m.name), ".")
			separator := " "
			if i == len(s.members)-1 {
				separator = "\n"
			}
			_, _ = fmt.Fprintf(out, "%s %d %d %s%s", ext, m.at, m.size, m.name, separator)
		}
	}
	return nil
}
