package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const privAllowed = "default, then any of +ipc_lock and -CAPABILITY, separated by commas, such as default,-net_raw"

// defaultCapabilities are what an operating system needs for its services and
// package scripts, and nothing that reaches outside its own namespaces.
var defaultCapabilities = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "ipc_owner", "kill", "lease", "mknod", "net_admin",
	"net_bind_service", "net_broadcast", "net_raw", "setfcap", "setgid", "setpcap", "setuid", "sys_boot", "sys_chroot",
	"sys_ptrace",
}

// requiredCapabilities are those without which an init cannot do its work.
var requiredCapabilities = []string{"chown", "dac_override", "fowner", "kill", "setgid", "setuid"}

// optionalCapabilities can be added. They do not reach outside of the zone.
var optionalCapabilities = []string{"ipc_lock"}

// forbiddenCapabilities are never given, with the reason.
var forbiddenCapabilities = map[string]string{
	"audit_control": "rules the host's audit", "audit_read": "reads the host's audit", "block_suspend": "keeps the host awake",
	"bpf": "loads programs into the host's kernel", "checkpoint_restore": "reaches into other processes",
	"dac_read_search": "opens files outside of the root", "linux_immutable": "makes files that the host cannot remove",
	"mac_admin": "changes the host's security policy", "mac_override": "overrides the host's security policy",
	"perfmon": "watches the host's kernel", "sys_admin": "is root on the host", "sys_module": "loads modules into the host's kernel",
	"sys_nice": "escapes capped-cpu by real-time priority", "sys_pacct": "switches the host's accounting",
	"sys_rawio": "reaches the host's memory and ports", "sys_resource": "overrides the zone's limits", "sys_time": "sets the host's clock",
	"sys_tty_config": "changes the host's terminals", "syslog": "reads the host's kernel log", "wake_alarm": "wakes the host",
}

// Capabilities returns what processes of z can have, as CAP_ names, sorted.
func (z Zone) Capabilities() []string {
	names, why := capabilities(z.LimitPriv)
	if why != "" {
		names = slices.Clone(defaultCapabilities) // Validate refuses such a zone
	}
	for i, n := range names {
		names[i] = "CAP_" + strings.ToUpper(n)
	}
	return names
}

// capabilities reads a limitpriv, where "" is the default set, or says why it
// is none.
func capabilities(s string) (names []string, why string) {
	names = slices.Clone(defaultCapabilities)
	if s == "" {
		return names, ""
	}
	words := strings.Split(s, ",")
	if words[0] != "default" {
		return nil, "does not begin with default; allowed: " + privAllowed
	}
	for _, w := range words[1:] {
		name := ""
		if len(w) > 1 && strings.ContainsRune("+-!", rune(w[0])) {
			name = strings.TrimPrefix(strings.ToLower(w[1:]), "cap_")
		}
		switch {
		case name == "":
			return nil, fmt.Sprintf("has %s, which neither adds nor takes away; allowed: %s", quoted(w), privAllowed)
		case w[0] == '+':
			if why := whyNotAdded(name); why != "" {
				return nil, why
			}
			names = append(names, name)
		default:
			if why := whyNotTaken(name); why != "" {
				return nil, why
			}
			names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		}
	}
	slices.Sort(names)
	return slices.Compact(names), ""
}

func whyNotAdded(name string) string {
	if reason, ok := forbiddenCapabilities[name]; ok {
		return fmt.Sprintf("asks for %s, which no zone gets: it %s", name, reason)
	}
	if slices.Contains(defaultCapabilities, name) || slices.Contains(optionalCapabilities, name) {
		return ""
	}
	return unknownCapability(name)
}

func whyNotTaken(name string) string {
	switch {
	case slices.Contains(requiredCapabilities, name):
		return fmt.Sprintf("takes away %s, without which no zone boots; required: %s", name, strings.Join(requiredCapabilities, ", "))
	case slices.Contains(defaultCapabilities, name), slices.Contains(optionalCapabilities, name), forbiddenCapabilities[name] != "":
		return ""
	}
	return unknownCapability(name)
}

func unknownCapability(name string) string {
	known := append(slices.Clone(defaultCapabilities), optionalCapabilities...)
	if near := Nearest(name, known); near != "" {
		return fmt.Sprintf("has the unknown capability %s; did you mean %s?", quoted(name), near)
	}
	return fmt.Sprintf("has the unknown capability %s; known: %s", quoted(name), strings.Join(known, ", "))
}

var hostIDForm = regexp.MustCompile(`^[0-9a-fA-F]{1,8}$`)

func validHostID(s string) string {
	if !hostIDForm.MatchString(s) {
		return "is no host id; allowed: up to 8 hexadecimal digits, such as 1a2b3c4d"
	}
	return ""
}
