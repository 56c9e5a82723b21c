package source

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"bowstring/schema"
)

func uint32s(values ...int) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// mdsShardOf returns a shard with one column of variable size.
func mdsShardOf(samples ...[]byte) []byte {
	at := 4 + 4*(len(samples)+1)
	offsets, content := []int{at}, []byte{}
	for _, s := range samples {
		content = append(append(content, uint32s(len(s))...), s...)
		offsets = append(offsets, at+len(content))
	}
	return slices.Concat(uint32s(len(samples)), uint32s(offsets...), content)
}

// TestMDSSurveyed: the type of such a column depends on all its values.
func TestMDSSurveyed(t *testing.T) {
	one, two := jpg(t, 1), jpg(t, 2)
	list := func(images ...string) []byte {
		sizes := []int{len(images)}
		for _, image := range images {
			sizes = append(sizes, len(image))
		}
		return append(uint32s(sizes...), strings.Join(images, "")...)
	}
	array := func(head string, values ...int) []byte { return append([]byte(head), uint32s(values...)...) }
	text := func(values ...string) (all [][]byte) {
		for _, v := range values {
			all = append(all, []byte(v))
		}
		return all
	}
	for name, c := range map[string]struct {
		encoding string
		samples  [][]byte
		fields   string // except the id
		rows     string
		problem  string // in opening it, or of a bad sample
	}{
		"int64":      {"str_int", text("1", "-9223372036854775808"), "x: int64", "1 -9223372036854775808", ""},
		"uint64":     {"str_int", text("1", "18446744073709551615"), "x: uint64", "1 18446744073709551615", ""},
		"beyond":     {"str_int", text("1", "18446744073709551616"), "x: utf8", "1 18446744073709551616", ""},
		"both signs": {"str_int", text("-1", "18446744073709551615"), "x: utf8", "-1 18446744073709551615", ""},
		"no number":  {"str_int", text("1", "x"), "x: int64", "1", "invalid syntax"},
		"no number, large": {"str_int", text("18446744073709551616", "0x1"), "x: utf8", "18446744073709551616",
			`"0x1" is no whole number`},
		"array": {"ndarray", [][]byte{array("\x21\x08\x01\x02", 7, 8), array("\x21\x09\x02\x00\x01\x00", 7, 8)},
			"x: list<item: list<item: int32, nullable>, nullable>", "[[7,8]] [[7],[8]]", ""},
		"array, typed": {"ndarray:uint32", [][]byte{array("\x04\x02", 7, 1<<32-1), array("\x04\x01", 1)},
			"x: list<item: uint32, nullable>", "[7,4294967295] [1]", ""},
		"two types": {"ndarray", [][]byte{array("\x21\x04\x01", 7), array("\x20\x04\x01", 7)},
			"", "", "int32 of 1 dimensions and uint32 of 1 dimensions"},
		"two shapes": {"ndarray", [][]byte{array("\x21\x04\x01", 7), array("\x21\x08\x01\x01", 7)},
			"", "", "int32 of 1 dimensions and int32 of 2 dimensions"},
		"short array": {"ndarray", [][]byte{array("\x21\x04\x01", 7), array("\x21\x04\x02", 7)},
			"x: list<item: int32, nullable>", "[7]", "4 bytes of values, want the 8"},
		"no array": {"ndarray", [][]byte{{}}, "", "", "no array that can be read"},
		"huge shape": {"ndarray:int8", [][]byte{array("\x04\x01\x01"), []byte("\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")},
			"x: list<item: int8, nullable>", "[1]", "impossible shape"},

		"images": {"jpeg_array", [][]byte{list(one, two), list(two, one)}, "x_0: large_binary x_1: large_binary", one + " " + two, ""},

		"list": {"list[jpeg]", [][]byte{slices.Concat(uint32s(0), list(one)), slices.Concat(uint32s(0), list(two))}, "x_0: large_binary", one + " " + two, ""},
		"two lengths": {"list[png]", [][]byte{slices.Concat(uint32s(0), list(one)), slices.Concat(uint32s(0), list(two, one))},
			"", "", "between 1 and 2 images a sample; a row has one image in a column: write a sample for each image"},
		"none": {"jpegarray", [][]byte{list()}, "", "", "holds no image"},

		"cut": {"jpegarray", [][]byte{list(one), list(one)[:50]}, "x_0: large_binary", one, "cut short: image 0 has"},
		"many": {"jpegarray", [][]byte{uint32s(append([]int{300}, make([]int, 300)...)...)},
			"", "", "300 images a sample, which would be as many columns"},
		"nonsense": {"jpegarray", [][]byte{uint32s(1<<32 - 1)}, "", "", "holds no image"},
	} {
		t.Run(name, func(t *testing.T) {
			shard := mdsShardOf(c.samples...)
			root := mdsDir(t, map[string]any{"column_encodings": []string{c.encoding}, "samples": len(c.samples),
				"raw_data": map[string]any{"basename": "s.mds", "bytes": len(shard)}}, "s.mds", shard)
			if c.fields == "" {
				if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
					!strings.Contains(err.Error(), c.problem) {
					t.Errorf("%v, want %q", err, c.problem)
				}
				return
			}
			r := readAll(t, root, Options{}, ReadOptions{})
			var fields, rows []string
			for _, f := range r.schema.Fields()[1:] {
				if f.Name[0] == 'x' {
					fields = append(fields, f.Name+": "+f.Type.String())
				}
			}
			for i, row := range r.rows {
				if _, value, ok := strings.Cut(row, "x="); ok {
					rows = append(rows, value)
				} else {
					rows = append(rows, string(r.blobs[i]))
				}
			}
			if got := strings.Join(fields, " "); got != c.fields {
				t.Errorf("fields %s, want %s", got, c.fields)
			}
			if got := strings.Join(rows, " "); got != c.rows {
				t.Errorf("rows %.300q, want %.300q", got, c.rows)
			}
			if c.problem == "" && len(r.bad) > 0 || c.problem != "" && (len(r.bad) != 1 ||
				!strings.Contains(r.bad[0].Reason, c.problem)) {
				t.Errorf("bad %q, want %q", badOf(r), c.problem)
			}
		})
	}
}
