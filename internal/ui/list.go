// Package ui turns data into what a person or a program reads: tables, JSON,
// sizes, progress. It knows nothing of zones; every function writes to the
// writer it is given.
package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"zone/internal/errdefs"
)

// The formats of --format.
const (
	FormatTable = "table"
	FormatJSON  = "json"
	FormatJSONL = "jsonl"
)

// Column is one column that a list of T can show.
type Column[T any] struct {
	Name   string // what --columns takes; the header is its upper case
	Value  func(T) string
	Right  bool // numbers stand to the right
	Hidden bool // shown only when --columns asks for it
}

// ListOptions says how to print a list.
type ListOptions struct {
	Format   string
	Quiet    bool     // the first column only, without header
	Columns  []string // nil: the columns that are not hidden
	NoHeader bool
	Key      string // the JSON field that holds the rows: "zones"
}

// List prints rows: as a table, as one JSON object {"schema":1,KEY:[...]}, or
// as one JSON object a line.
func List[T any](w io.Writer, opt ListOptions, columns []Column[T], rows []T) error {
	cols, err := chosen(opt, columns)
	if err != nil {
		return err
	}
	switch opt.Format {
	case FormatJSON:
		if rows == nil {
			rows = []T{}
		}
		return JSON(w, map[string]any{"schema": 1, opt.Key: rows})
	case FormatJSONL:
		for _, r := range rows {
			if err := json.NewEncoder(w).Encode(r); err != nil {
				return err
			}
		}
		return nil
	case FormatTable, "":
	default:
		return errdefs.New(errdefs.Usage, "--format "+opt.Format, "unknown format; allowed: table, json, jsonl")
	}
	var cells [][]string
	if !opt.Quiet && !opt.NoHeader {
		head := make([]string, len(cols))
		for i, c := range cols {
			head[i] = strings.ToUpper(c.Name)
		}
		cells = append(cells, head)
	}
	for _, r := range rows {
		line := make([]string, len(cols))
		for i, c := range cols {
			line[i] = Printable(c.Value(r))
			if line[i] == "" {
				line[i] = "-"
			}
		}
		cells = append(cells, line)
	}
	right := make([]bool, len(cols))
	for i, c := range cols {
		right[i] = c.Right
	}
	return table(w, cells, right)
}

func chosen[T any](opt ListOptions, columns []Column[T]) ([]Column[T], error) {
	if opt.Quiet {
		return columns[:1], nil
	}
	var cols []Column[T]
	if opt.Columns == nil {
		for _, c := range columns {
			if !c.Hidden {
				cols = append(cols, c)
			}
		}
		return cols, nil
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	if len(opt.Columns) == 0 {
		return nil, errdefs.New(errdefs.Usage, "--columns", "none named; allowed: %s", strings.Join(names, ", "))
	}
next:
	for _, want := range opt.Columns {
		for _, c := range columns {
			if strings.EqualFold(c.Name, want) {
				cols = append(cols, c)
				continue next
			}
		}
		return nil, errdefs.New(errdefs.Usage, "--columns "+want, "no such column; allowed: %s", strings.Join(names, ", "))
	}
	return cols, nil
}

func table(w io.Writer, cells [][]string, right []bool) error {
	width := make([]int, len(right))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, line := range cells {
		for i, c := range line {
			if i > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			switch {
			case right[i]:
				b.WriteString(pad + c)
			case i == len(line)-1:
				b.WriteString(c)
			default:
				b.WriteString(c + pad)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Object prints one object: indented for people who read JSON, on one line
// for jsonl.
func Object(w io.Writer, format string, v any) error {
	if format == FormatJSONL {
		return json.NewEncoder(w).Encode(v)
	}
	return JSON(w, v)
}

// JSON prints v as indented JSON.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Printable replaces control characters and invalid UTF-8, so that a hostile
// name cannot move the cursor or break a line.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// Bytes prints a size the way sizes are typed: 512M, 1.5G. Zero is "0".
func Bytes(n int64) string {
	if n < 0 {
		return "-" + Bytes(-n)
	}
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprint(n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1023.95 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	s := fmt.Sprintf("%.1f", v)
	if v >= 99.95 {
		s = fmt.Sprintf("%.0f", v)
	}
	return strings.TrimSuffix(s, ".0") + units[i:i+1]
}
