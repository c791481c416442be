package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"zone/internal/config"
	"zone/internal/errdefs"
)

// docsDate is fixed so that the generated pages change only with the commands.
var docsDate = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// newDocsCommand writes the reference: from the command tree, from the table
// of configuration keys and from the kinds of errors.
func newDocsCommand(_ *app) *cobra.Command {
	return &cobra.Command{
		Use: "generate-docs DIR", Hidden: true, Short: "write the reference: DIR/man, DIR/commands and single pages",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			man, md := filepath.Join(args[0], "man"), filepath.Join(args[0], "commands")
			for _, d := range []string{man, md} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					return err
				}
			}
			header := &doc.GenManHeader{Title: "ZONE", Section: "8", Date: &docsDate, Source: "zone", Manual: "zone"}
			if err := doc.GenManTree(root, header, man); err != nil {
				return err
			}
			if err := doc.GenMarkdownTree(root, md); err != nil {
				return err
			}
			for name, text := range map[string]string{
				"config-keys.md": configKeysPage(config.Keys()), "exit-codes.md": exitCodesPage(),
			} {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// configKeysPage describes every key of a zone's definition.
func configKeysPage(keys []config.Key) string {
	var b strings.Builder
	b.WriteString("# Keys of a zone's definition\n\n" +
		"Written by `make man` from the table that also checks definitions. A zone is defined by `zone config set\n" +
		"NAME KEY=VALUE`, by `--set` at `zone create`, or in TOML, where `capped-cpu.ncpus` is the key `ncpus` of the\n" +
		"table `[capped-cpu]`. \"Apply\": `zone config apply NAME` makes the change on a running zone. \"Next\n" +
		"boot\": the change waits until the zone boots. \"Fixed\": chosen at create.\n\n" +
		"| Key | Type | Default | Allowed | Takes effect | Meaning |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", k.Name, k.Type, k.Default, k.Allowed, takesEffect(k), k.Doc)
	}
	return b.String()
}

func takesEffect(k config.Key) string {
	switch {
	case k.Fixed:
		return "fixed"
	case k.NextBoot && k.Live:
		return "apply, next boot"
	case k.NextBoot:
		return "next boot"
	}
	return "at once"
}

// exitCodesPage tells what the exit codes of all commands mean.
func exitCodesPage() string {
	rows := []struct {
		kind    errdefs.Kind
		meaning string
	}{
		{errdefs.Failed, "The work was tried and failed."},
		{errdefs.Usage, "Wrong flags, names or values; nothing was tried."},
		{errdefs.Partial, "Partly done: some zones failed. The report says which."},
		{errdefs.NotFound, "No such zone, pool, image or snapshot."},
		{errdefs.Busy, "Locked, or in use by somebody else."},
		{errdefs.WrongState, "Not allowed in the present state of the zone or pool."},
		{errdefs.NotSupported, "The host lacks a feature; the message says which and what would provide it."},
		{errdefs.Interrupted, "Ended by a signal. What was unfinished is taken back, by the next command at the latest."},
	}
	var b strings.Builder
	b.WriteString("# Exit codes\n\nThe same for all commands. `zone exec` and `zone login` end with the code of the command they ran, " +
		"once it\nhas started. Count a code that is not listed as a failure.\n\n" +
		"| Code | Meaning |\n| --- | --- |\n| 0 | Done. |\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %d | %s |\n", r.kind.ExitCode(), r.meaning)
	}
	b.WriteString("\nErrors go to standard error: one line of what and why, and where known `try:` with a command that helps.\n" +
		"With `--json` the error is one object: `schema`, `error`, `hint`, `exit_code`.\n")
	return b.String()
}
