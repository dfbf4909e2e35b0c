# Login shells start with a PATH of Debian's; put back what the image has.
PATH="$PATH:/usr/local/cuda/bin"
