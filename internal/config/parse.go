package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Parse reads a definition. Every problem of the file is reported at once,
// with its line, its key and what is allowed there; file is the name to show.
// Only broken TOML stops at the first problem.
func Parse(file string, data []byte) (Zone, error) {
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		return Zone{}, Problems{syntaxProblem(file, err)}.err()
	}
	r := reader{lines: keyLines(data)}
	r.table(nil, tree)
	all := append(r.problems, unreported(r.zone, r.problems)...)
	for i := range all {
		all[i].File = file
		if all[i].Line == 0 {
			all[i].Line = r.lines[strings.ReplaceAll(all[i].Key, ".", pathSeparator)]
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	if err := all.err(); err != nil {
		return Zone{}, err
	}
	return r.zone, nil
}

func syntaxProblem(file string, err error) Problem {
	p := Problem{File: file, Text: strings.TrimPrefix(err.Error(), "toml: ")}
	var d *toml.DecodeError
	if errors.As(err, &d) {
		p.Line, _ = d.Position()
	}
	return p
}

// reader turns a TOML tree into a zone, noting every problem on the way.
type reader struct {
	lines    map[string]int // by joined path
	zone     Zone
	problems Problems
}

// pathSeparator joins key paths; a quoted key may hold dots but never this.
const pathSeparator = "\x00"

func (r *reader) table(path []string, t map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		r.entry(append(slices.Clone(path), name), t[name])
	}
}

func (r *reader) entry(path []string, v any) {
	name := strings.Join(path, ".")
	k, ok := keyAt(path)
	sub, isTable := v.(map[string]any)
	switch {
	case ok && k.fields != nil:
		r.list(path, k, v)
	case ok && isTable:
		r.problem(path, name, "is a table; it takes "+k.Allowed)
	case ok:
		text, why := valueText(k, v)
		if why == "" {
			why = k.set(&r.zone, text)
		}
		if why != "" {
			r.problem(path, shown(k.Name), why)
		}
	case len(path) == 1 && isResource(name) && isTable:
		r.table(path, sub)
	case len(path) == 1 && isResource(name):
		r.problem(path, name, "is a table; its keys: "+strings.Join(resourceNames(name), ", "))
	case len(path) == 1 && isTable && nearestResource(name) != "":
		r.problem(path, shown(name), "unknown key; did you mean the table "+nearestResource(name)+"?")
	case isTable && len(sub) > 0 && len(path) < 8: // name what is in it: each is a key too many
		r.table(path, sub)
	default:
		r.problem(path, shown(name), unknown(name))
	}
}

// list reads the tables of a list. Paths of their keys hold the number of the
// entry, as keyLines notes it.
func (r *reader) list(path []string, k Key, v any) {
	entries, ok := v.([]any)
	if !ok || len(entries) == 0 {
		r.problem(path, k.Name, "is written as tables [["+k.Name+"]]; it takes "+k.Allowed)
		return
	}
	var texts []string
	before := len(r.problems)
	for i, e := range entries {
		at := append(slices.Clone(path), entryNumber(i))
		t, ok := e.(map[string]any)
		if !ok {
			r.problem(path, k.Name, "is written as tables [["+k.Name+"]]; it takes "+k.Allowed)
			return
		}
		texts = append(texts, r.listEntry(at, k, t))
	}
	if len(r.problems) > before {
		return
	}
	if why := k.set(&r.zone, strings.Join(texts, "; ")); why != "" {
		r.problem(path, k.Name, why)
	}
}

func (r *reader) listEntry(path []string, k Key, t map[string]any) string {
	shownEntry := k.Name + path[len(path)-1]
	var words []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		at := append(slices.Clone(path), name)
		i := slices.IndexFunc(k.fields, func(f entryField) bool { return f.name == name })
		if i < 0 {
			r.problem(at, shownEntry, unknownField(name, k.fields))
			continue
		}
		text, ok := oneString(t[name])
		why := "is no text; allowed: " + k.fields[i].allowed + ", in quotes"
		if ok {
			why = k.fields[i].refuse(text)
		}
		if why != "" {
			r.problem(at, shownEntry+"."+name, why)
		}
		words = append(words, name+"="+text)
	}
	for _, f := range k.fields {
		if _, ok := t[f.name]; f.required && !ok {
			r.problem(path, shownEntry, fmt.Sprintf("needs %s: %s", f.name, f.allowed))
		}
	}
	return strings.Join(words, " ")
}

// oneString takes a string, or a list of just one.
func oneString(v any) (string, bool) {
	if list, ok := v.([]any); ok && len(list) == 1 {
		v = list[0]
	}
	s, ok := v.(string)
	return s, ok
}

// entryNumber stands in paths for the entry of a list, counted from 1 as users do.
func entryNumber(i int) string { return fmt.Sprintf("[%d]", i+1) }

func (r *reader) problem(path []string, key, text string) {
	line := r.lines[strings.Join(path, pathSeparator)]
	r.problems = append(r.problems, Problem{Line: line, Key: key, Text: text})
}

// keyAt finds the key at a path of the file, where short forms do not count
// and only the name of an attribute may hold dots.
func keyAt(path []string) (Key, bool) {
	if len(path) == 2 && path[0]+"." == attrPrefix {
		return attrKey(path[1]), true
	}
	if len(path) > 2 || path[0]+"." == attrPrefix || strings.Contains(strings.Join(path, ""), ".") {
		return Key{}, false
	}
	name := strings.Join(path, ".")
	k, ok := lookup(name)
	return k, ok && k.Name == name
}

// isResource reports whether a table of that name holds keys.
func isResource(name string) bool { return len(resourceNames(name)) > 0 }

func nearestResource(name string) string {
	var resources []string
	for _, k := range Keys() {
		if resource, _, ok := strings.Cut(k.Name, "."); ok {
			resources = append(resources, resource)
		}
	}
	return Nearest(name, resources)
}

func resourceNames(resource string) []string {
	var names []string
	for _, k := range Keys() {
		if rest, ok := strings.CutPrefix(k.Name, resource+"."); ok {
			names = append(names, rest)
		}
	}
	return names
}

// valueText returns a TOML value as the text that Set takes, or why the value
// is of the wrong type for the key.
func valueText(k Key, v any) (text, why string) {
	ok, is := false, ""
	switch v := v.(type) {
	case string:
		ok, text, is = slices.Contains([]string{TypeString, TypeChoice, TypeSize, TypeDuration}, k.Type), v, "a string"
	case int64:
		ok, text, is = slices.Contains([]string{TypeInt, TypeNumber, TypeSize}, k.Type), fmt.Sprint(v), "a whole number"
	case float64:
		ok, text, is = k.Type == TypeNumber, numberText(v), "a number with a fraction"
	case bool:
		ok, text, is = k.Type == TypeBool, fmt.Sprint(v), "a truth value"
	case []any:
		is = "a list"
	case time.Time, toml.LocalDate, toml.LocalDateTime, toml.LocalTime:
		is = "a date or time"
	default:
		is = "of another type"
	}
	if !ok {
		return "", fmt.Sprintf("is %s; allowed: %s%s", is, k.Allowed, written(k))
	}
	return text, ""
}

// written says how the type of a key is written in TOML.
func written(k Key) string {
	switch k.Type {
	case TypeBool, TypeInt, TypeNumber:
		return ", without quotes"
	default:
		return ", in quotes"
	}
}

// keyLines returns the line of every key and table of a valid document.
func keyLines(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	count := map[string]int{}
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table:
			table = noteKey(&p, lines, nil, e)
		case unstable.ArrayTable:
			table = noteKey(&p, lines, nil, e)
			name := strings.Join(table, pathSeparator)
			table = append(table, entryNumber(count[name]))
			count[name]++
			noteLine(&p, lines, strings.Join(table, pathSeparator), e)
		case unstable.KeyValue:
			noteKeyValue(&p, lines, table, e)
		}
	}
	return lines
}

func noteKeyValue(p *unstable.Parser, lines map[string]int, table []string, e *unstable.Node) {
	path := noteKey(p, lines, table, e)
	if v := e.Value(); v.Kind == unstable.InlineTable {
		for it := v.Children(); it.Next(); {
			noteKeyValue(p, lines, path, it.Node())
		}
	}
}

// noteKey notes the line of a dotted key and of each part before it, and
// returns its whole path.
func noteKey(p *unstable.Parser, lines map[string]int, base []string, e *unstable.Node) []string {
	path := slices.Clone(base)
	for it := e.Key(); it.Next(); {
		n := it.Node()
		path = append(path, string(n.Data))
		joined := strings.Join(path, pathSeparator)
		if _, known := lines[joined]; !known {
			lines[joined] = p.Shape(n.Raw).Start.Line
		}
	}
	return path
}

// noteLine notes the line of the entry of a list.
func noteLine(p *unstable.Parser, lines map[string]int, path string, e *unstable.Node) {
	if it := e.Key(); it.Next() {
		lines[path] = p.Shape(it.Node().Raw).Start.Line
	}
}
