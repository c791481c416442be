package image

import (
	"context"
	"os"
	"path/filepath"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// unpackTar fills root from an archive, compressed or not. GNU tar keeps a
// hostile archive inside: it drops leading slashes, refuses "..", and makes
// symbolic links that lead out only after all files are written.
func (s *Store) unpackTar(ctx context.Context, file, root string, progress func(string)) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return errdefs.Wrap(errdefs.Usage, "--from tar:"+file, err)
	}
	if !st.Mode().IsRegular() {
		return errdefs.New(errdefs.Usage, "--from tar:"+file, "not a regular file")
	}
	progress("unpack " + file)
	_, err = runTool(ctx, s.Runner, host.Cmd{Name: "tar", Args: tarArgs(path, root)})
	return err
}

func tarArgs(path, root string) []string {
	return []string{
		"--extract", "--file=" + path, "--directory=" + root,
		"--force-local", // a colon in the name means no remote host
		"--numeric-owner", "--same-owner", "--preserve-permissions", "--acls",
		// Attributes of overlayfs among trusted.* could redirect directories.
		"--xattrs", "--xattrs-include=*", "--xattrs-exclude=trusted.*",
	}
}
