// Package where selects samples by an expression over their metadata, and makes columns of one, such as
//
//	label < 10 and width >= 400
//	split == "train" and file_name contains "cat"
//	any(tags, # startsWith "bird") and taken > date("2024-01-01")
//
// The language is that of github.com/expr-lang/expr, without what has no place
// in a selection: variables, sequences, the clock, and functions that build
// large values.
//
// # Columns
//
// Names are metadata columns, id (a UUID in its canonical text form), position
// (an integer) and split (a string, "" outside of every split). A column whose
// name is no identifier is written $env["its name"]. Blob columns have no value
// here.
//
//	Arrow type                                     value
//	bool                                           bool
//	int8 to int64, uint8 to uint64                 int
//	float16 to float64, decimal128                 float (of a decimal the nearest one)
//	utf8, large_utf8, binary, fixed_size_binary    string
//	timestamp, date32, date64                      time, as date("2024-01-31") makes one; UTC
//	time32, time64, duration                       duration, as duration("1h30m") makes one; 292 years at most
//	list, fixed_size_list                          array; an item of it may be null
//	struct                                         its fields, by name: box.width
//
// # Numbers
//
// Numbers are compared as what they are, whatever their types: no integer is rounded to a float for it, and integers
// reach from -2^63 to 2^64-1. A literal beyond that can be compared, and no more. Sums, differences, products and
// remainders of integers are exact. A result that an int64 does not hold is an error of the row; where a uint64 takes
// part, the result is at most 2^64-1. So is int(x) of what an int64 does not hold. x / y, x ** y and means are floats.
//
// # Null
//
// A comparison, or any other test, that needs the value of a null cell is
// false, and so not (x > 3) is true where x is null, as is x not in [1, 2], which
// is not (x in [1, 2]). x == nil and x != nil tell
// nulls apart, and x ?? 0 puts another value in their place.
//
// A list has its null items as any others: len counts them, an index finds them, x in list passes over them, and
// nil in list looks for one. Within any(list, …) and its like # is null for such an item, and so is what map makes of
// it. An item by index that is null is null as a column is; so is what first, last, find, findIndex and their like
// give where there is none, and what max and min give of nothing. sum, mean, median, max and min leave nulls out.
//
// # Ranges
//
// x in 1..9 means x >= 1 and x <= 9, and 1 < x < 9 means 1 < x and x < 9; x is evaluated once. A range is good for
// nothing else.
//
// # Columns that are made
//
// [CompileColumn] takes any expression of which the value is a bool, an int (an int64, or a uint64 where the values may
// be beyond it and none is negative), a float, a
// string, a time or a duration: it makes a column of them for rows that are served. A value is
// null where a column is that it needs; a test is false there, as in a selection.
//
// # Limits
//
// Of the text: schema.MaxWhereBytes bytes, brackets 256 deep, predicates such as any two deep, conditionals four, paths
// such as a.b.c of 32 steps. Patterns of matches are literals that come to 2,048 instructions at most, with 16 classes
// such as \pL or [a-ÿ].
//
// Of the form that is compiled: 32,768 nodes. A node is a name, a literal, an operator or a call; 64 bytes of text that
// literals are joined to are one more, and a date in a time zone is 64. The form has tests for nulls: those of a column
// that may be null for each test that needs it, and the condition of a ?: again where what it chooses may be null. It is
// counted before it is compiled. So compiling takes time in proportion to the nodes, some microseconds for each, and
// allocates 2 KiB at most for each byte of the text or, if they are more, for each node, and 256 KiB. [Compile] takes
// two turns for it and [CompileColumn] one; both end with their context. What a row costs is told in 262,144 steps, or
// refused.
//
// What an expression may cost is bounded, in steps: [MaxRowSteps] for a row, and [MaxSteps] or, if that is more,
// [FreeSteps] for each row for all. What an expression takes for a row is computed from it and from the sizes of the
// row's cells before the row is evaluated; 128 bytes at most are made for each step, and 64 KiB.
package where
