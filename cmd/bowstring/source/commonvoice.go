package source

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bowstring/schema"
)

// clipsFolder is where Common Voice keeps its recordings, beside its tables.
const clipsFolder = "clips"

// votes are the columns of Common Voice that are numbers; the others are text, whatever they look like.
var votes = []string{"up_votes", "down_votes"}

// voiceSplits are the tables of Common Voice that tell splits apart. The others (validated, other,
// invalidated) name clips of these once more, or such as nobody has agreed on: they are read where one is asked for.
var voiceSplits = []string{"train", "dev", "test"}

// openCommonVoice opens a language of Common Voice: tables of tab-separated values, each a
// split, that name the clips in the folder beside them.
func openCommonVoice(ctx context.Context, root string, opts Options) (Source, error) {
	s := &list{about: about{format: "commonvoice", path: absolute(root)}, dir: absolute(root), label: -1}
	splits, others, err := voiceTables(s.dir, opts.Split)
	if err != nil {
		return nil, err
	}
	if len(splits) == 0 {
		return nil, fmt.Errorf("%w: it has none of train.tsv, dev.tsv and test.tsv; --split names another table, "+
			"such as validated", schema.ErrInvalid)
	}
	if len(others) > 0 {
		s.notes = append(s.notes, quotedList(others)+" were not read; --split takes one of them")
	}
	in, err := boundsOf(s.dir, opts)
	if err != nil {
		return nil, err
	}
	s.found = &namer{dir: s.dir, in: in}
	t := newLooseTable(tableOptions{choice: opts.choice, text: []string{"path"}, typed: votes})
	for _, split := range splits {
		file := split + ".tsv"
		if err := in.check(filepath.Join(s.dir, file)); err != nil {
			return nil, err
		}
		// Quotation marks are text: one in a sentence may be the first character of it.
		if err := readFile(filepath.Join(s.dir, file), func(in *bufio.Reader) error {
			return t.readDelimited(ctx, file, "voice", true, in)
		}); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(file), err)
		}
		if _, ok := t.index["path"]; !ok {
			return nil, fmt.Errorf("%w: %s: there is no column path, only %s", schema.ErrInvalid, Quoted(file),
				quotedList(t.names))
		}
	}
	table, err := t.build()
	if err != nil {
		return nil, err
	}
	s.paths = opts.choice.keeps("path", schema.PathColumn)
	column := table.remove(table.find("path"))
	table.choose(opts.choice)
	for row := range table.rows {
		s.files = append(s.files, clip(text(column, row)))
		s.split = append(s.split, strings.TrimSuffix(table.lines[row].file, ".tsv"))
	}
	table.bad = slices.DeleteFunc(table.bad, func(r badRow) bool {
		return opts.Split != "" && r.at.file != opts.Split+".tsv"
	})
	s.meta = table
	s.arrange(opts.Split)
	s.splits = splits
	s.blobs = audioBlob()
	s.notes = append(append(s.notes, table.notes...), table.rename(schema.PathColumn, schema.MediaAudio, "label")...)
	return s, nil
}

// voiceTables are the tables that are read, and those that are not.
func voiceTables(root, asked string) (read, others []string, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
	}
	for _, e := range entries {
		name, table := strings.CutSuffix(e.Name(), ".tsv")
		switch {
		case !table || e.IsDir() || hidden(name):
		case slices.Contains(voiceSplits, name) || name == asked:
			read = append(read, name)
		default:
			others = append(others, e.Name())
		}
	}
	if asked != "" && !slices.Contains(voiceSplits, asked) && slices.Contains(read, asked) {
		return []string{asked}, nil, nil // its clips are in the splits, too
	}
	slices.SortFunc(read, func(a, b string) int { return slices.Index(voiceSplits, a) - slices.Index(voiceSplits, b) })
	return read, others, nil
}

// clip is where a recording lies; "" where a name leads out of the folder. Old releases leave out its extension.
func clip(name string) string {
	if !filepath.IsLocal(name) {
		return ""
	}
	if !isAudioName(name) {
		name += ".mp3"
	}
	return path.Join(clipsFolder, filepath.ToSlash(name))
}

func (l *layout) looksCommonVoice() bool {
	inClips := func(name string) bool { return filepath.Dir(name) == clipsFolder && isAudioName(name) }
	table := func(name string) bool {
		stem, is := strings.CutSuffix(name, ".tsv")
		return is && (slices.Contains(voiceSplits, stem) || stem == "validated")
	}
	return l.dir && l.any(inClips) && l.any(table)
}
