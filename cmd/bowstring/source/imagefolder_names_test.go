package source

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"bowstring/schema"
)

// TestFileNameColumns: metadata that names files in several columns is read as the
// library datasets reads it.
func TestFileNameColumns(t *testing.T) {
	pics := map[string]string{"images/1.jpg": jpg(t, 1), "images/2.jpg": jpg(t, 2),
		"masks/1.png": string(picture(t, "png", 1, 2, 2)), "masks/2.png": string(picture(t, "png", 2, 2, 2)),
		"x.npy": "\x93NUMPY", "s.wav": "RIFF"}
	split := map[string]string{"train/1.jpg": jpg(t, 1), "train/1_mask.png": string(picture(t, "png", 1, 2, 2)),
		"test/1.jpg": jpg(t, 1), "test/1_mask.png": string(picture(t, "png", 1, 2, 2))}
	for name, c := range map[string]struct {
		files    map[string]string
		metadata map[string]string
		opts     Options
		blobs    string // columns and media
		rows     []string
		bad      []string // parts of reasons
		notes    string
		fails    string
	}{
		"two columns": {files: pics, metadata: map[string]string{"metadata.csv": "image_file_name,mask_file_name,label,n\n" +
			"images/1.jpg,masks/1.png,cat,1\nimages/2.jpg,masks/2.png,dog,2\n"}, blobs: "image:image mask:image",
			rows: []string{"images/1.jpg+masks/1.png: file_name=images/1.jpg label=0 n=1",
				"images/2.jpg+masks/2.png: file_name=images/2.jpg label=1 n=2"}},
		"file_name and another": {files: pics, metadata: map[string]string{"metadata.jsonl": `{"file_name": "images/1.jpg", "depth_file_name": "x.npy", "speech_file_name": "s.wav"}
{"file_name": "images/2.jpg", "depth_file_name": null}
`}, blobs: "image:image depth: speech:audio",
			rows: []string{"images/1.jpg+x.npy+s.wav: file_name=images/1.jpg", "images/2.jpg: file_name=images/2.jpg"},
			bad:  []string{"no row of the metadata (metadata.jsonl) names it", "no row of the metadata"}},
		"one original in two rows": {files: map[string]string{"o.jpg": jpg(t, 1), "a.jpg": jpg(t, 2), "b.jpg": jpg(t, 3)},
			metadata: map[string]string{"metadata.csv": "original_file_name,edited_file_name\no.jpg,a.jpg\no.jpg,b.jpg\no.jpg,a.jpg\n"},
			blobs:    "original:image edited:image",
			rows:     []string{"o.jpg+a.jpg: file_name=o.jpg", "o.jpg+b.jpg: file_name=o.jpg"},
			bad:      []string{"duplicate: metadata.csv:2 and metadata.csv:4 name it"}},
		"no such files": {files: map[string]string{"1.jpg": jpg(t, 1)},
			metadata: map[string]string{"metadata.csv": "file_name,original_file_name\n1.jpg,DSC01.JPG\n"},
			blobs:    "image:image", rows: []string{"1.jpg: file_name=1.jpg original_file_name=DSC01.JPG"},
			notes: `the column "original_file_name" names no file that there is, and is kept as text`},
		"a missing file": {files: pics, metadata: map[string]string{"metadata.csv": "image_file_name,mask_file_name\n" +
			"images/1.jpg,masks/1.png\nimages/2.jpg,masks/3.png\n,masks/2.png\n,\n"}, blobs: "image:image mask:image",
			rows: []string{"images/1.jpg+masks/1.png: file_name=images/1.jpg", "masks/2.png: file_name=masks/2.png"},
			bad:  []string{"mask: masks/3.png: unreadable: no such file", "it names no file"}},
		"splits": {files: split, metadata: map[string]string{"train/metadata.csv": "file_name,mask_file_name\n1.jpg,1_mask.png\n",
			"test/metadata.csv": "file_name,mask_file_name\n1.jpg,1_mask.png\n"}, blobs: "image:image mask:image",
			rows: []string{"test/1.jpg+test/1_mask.png: file_name=test/1.jpg", "train/1.jpg+train/1_mask.png: file_name=train/1.jpg"}},
		"one split": {files: split, metadata: map[string]string{"metadata.csv": "file_name,mask_file_name\ntrain/1.jpg,train/1_mask.png\ntest/1.jpg,test/1_mask.png\n"},
			opts: Options{Split: "test"}, blobs: "image:image mask:image",
			rows: []string{"test/1.jpg+test/1_mask.png: file_name=test/1.jpg"}},
		"lists": {files: pics, metadata: map[string]string{"metadata.jsonl": `{"file_names": ["images/1.jpg", "images/2.jpg"], "masks_file_names": ["masks/1.png"]}
{"file_names": ["images/2.jpg", "images/1.jpg"], "masks_file_names": ["masks/2.png"]}
`}, blobs: "image_0:image image_1:image masks_0:image",
			rows: []string{"images/1.jpg+images/2.jpg+masks/1.png: file_name=images/1.jpg",
				"images/2.jpg+images/1.jpg+masks/2.png: file_name=images/2.jpg"}},
		"lists of other lengths": {files: pics, metadata: map[string]string{"metadata.jsonl": `{"file_names": ["images/1.jpg"]}
{"file_names": ["images/2.jpg", "images/1.jpg"]}
`}, fails: `metadata.jsonl:2: the lists in column "file_names" are of 1 and 2 files; a row has one file in a column`},
		"one column twice": {files: pics, metadata: map[string]string{"metadata.csv": "file_name,image_file_name\nimages/1.jpg,images/2.jpg\n"},
			fails: `two columns of the metadata name the files of column "image"`},
		"out of the folder": {files: map[string]string{"1.jpg": jpg(t, 1)}, metadata: map[string]string{
			"metadata.csv": "file_name,mask_file_name\n1.jpg,../../../../../../etc/passwd\n1.jpg,1.jpg\n"}, blobs: "image:image mask:",
			rows: []string{"1.jpg+1.jpg: file_name=1.jpg"}, bad: []string{"a path out of the folder"}},
		"names of other systems": {files: map[string]string{"a/gro\u0308\u00dfe.jpg": jpg(t, 1), "a/é.jpg": jpg(t, 2), "a/m.png": string(picture(t, "png", 2, 2, 2))},
			metadata: map[string]string{"metadata.csv": "file_name,mask_file_name\n\"a\\gr\u00f6\u00dfe.jpg\",a\\m.png\na/e\u0301.jpg,a/m.png\n"},
			blobs:    "image:image mask:image",
			rows: []string{"a/gro\u0308\u00dfe.jpg+a/m.png: file_name=a/gro\u0308\u00dfe.jpg",
				"a/é.jpg+a/m.png: file_name=a/é.jpg"}},
		"names of other systems, one column": {files: map[string]string{"a/gro\u0308\u00dfe.jpg": jpg(t, 1), "a/é.jpg": jpg(t, 2), "a/b.jpg": jpg(t, 2)},
			metadata: map[string]string{"metadata.csv": "file_name,n\na/gr\u00f6\u00dfe.jpg,1\na/e\u0301.jpg,2\na\\b.jpg,3\n"},
			blobs:    "image:image",
			rows: []string{"a/b.jpg: label=0 file_name=a/b.jpg n=3", "a/gro\u0308\u00dfe.jpg: label=0 file_name=a/gro\u0308\u00dfe.jpg n=1",
				"a/é.jpg: label=0 file_name=a/é.jpg n=2"}},
		"both forms": {files: map[string]string{"e\u0301.jpg": jpg(t, 1), "é.jpg": jpg(t, 2)},
			metadata: map[string]string{"metadata.csv": "file_name,n\né.jpg,2\n"}, blobs: "image:image",
			rows: []string{"é.jpg: file_name=é.jpg n=2"}, bad: []string{"no row of the metadata"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for _, part := range []map[string]string{c.files, c.metadata} {
				for path, content := range part {
					files[path] = content
				}
			}
			root := tree(t, files)
			if c.fails != "" {
				if _, err := Open(t.Context(), root, c.opts); !errors.Is(err, schema.ErrInvalid) ||
					!strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, want %q", err, c.fails)
				}
				return
			}
			c.opts.Format = "imagefolder"
			r := readAll(t, root, c.opts, ReadOptions{})
			var blobs, rows []string
			for _, f := range schema.BlobFields(r.schema) {
				blobs = append(blobs, f.Name+":"+schema.Media(f))
			}
			for _, row := range r.rows {
				_, row, _ = strings.Cut(row, " ") // the split
				row, _, _ = strings.Cut(row, " width=")
				row, _, _ = strings.Cut(row, " duration=")
				rows = append(rows, row)
			}
			if got := strings.Join(blobs, " "); got != c.blobs {
				t.Errorf("blob columns %s, want %s", got, c.blobs)
			}
			if !slices.Equal(rows, c.rows) {
				t.Errorf("rows\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(c.rows, "\n"))
			}
			if len(r.bad) != len(c.bad) {
				t.Errorf("bad %q, want %q", badOf(r), c.bad)
			}
			for i, b := range r.bad {
				if i < len(c.bad) && !strings.Contains(b.Reason, c.bad[i]) {
					t.Errorf("bad %s: %s; want %q", b.Key, b.Reason, c.bad[i])
				}
			}
			if c.notes != "" && !slices.Contains(r.notes, c.notes) {
				t.Errorf("notes %q, want %q", r.notes, c.notes)
			}
		})
	}
}
