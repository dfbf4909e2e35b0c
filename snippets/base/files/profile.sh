# Login shells start with a PATH of Debian's; put back what the image has in front of it.
case ":$PATH:" in
    *:/opt/app-root/bin:*) ;;
    *) export PATH="/opt/app-root/bin:$HOME/.local/bin:$PATH" ;;
esac
