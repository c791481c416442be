package main

import (
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// docsDate is fixed so that the generated pages change only with the commands.
var docsDate = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// newDocsCommand writes the reference pages and man pages from the command
// tree.
func newDocsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "generate-docs DIR", Hidden: true, Short: "write man pages to DIR/man and Markdown to DIR/commands",
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
			return doc.GenMarkdownTree(root, md)
		},
	}
}
