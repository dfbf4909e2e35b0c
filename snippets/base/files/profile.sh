# Login shells start with a PATH of Debian's; put back what the image has in front of it.
case ":$PATH:" in
    *:/opt/app-root/bin:*) ;;
    *) export PATH="/opt/app-root/bin:$HOME/.local/bin:$PATH" ;;
esac

# What Refit has told the session's owner, for whoever logs in where it can be read.
if [ -t 1 ] && [ -r "$HOME/.local/state/refit/notice" ]; then cat "$HOME/.local/state/refit/notice"; fi
